"""Devices that learn together with Flower itself, where its environment was made: it pins other versions than ours."""

import json
import os
import socket
import subprocess

import numpy as np
import pytest

from sanderling.learn.federated import ENVIRONMENT
from sanderling.run.environments import import_path
from tests.integration.conftest import TIMEOUT_S
from tests.learning_tasks import dataset, make_task

pytest.importorskip("safetensors")

SERVER = """
import json, sys
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg
both = dict(min_fit_clients=2, min_evaluate_clients=2, min_available_clients=2)
mean = lambda found: {"accuracy": sum(n * each["accuracy"] for n, each in found) / sum(n for n, _ in found)}
strategy = FedAvg(**both, fit_metrics_aggregation_fn=lambda found: {}, evaluate_metrics_aggregation_fn=mean)
history = start_server(server_address=sys.argv[1], config=ServerConfig(num_rounds=3), strategy=strategy)
print(json.dumps([loss for _, loss in history.losses_distributed]))
"""
# Flower's own workflow and modification for SecAgg+, over a grid that calls the devices in this process
SECURE = """
import copy, json, sys
import numpy as np
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.task_id = 1
TaskIdentity.node_id = 0
from flwr.client.mod import secaggplus_mod
from flwr.common import Context, RecordDict, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from sanderling.learn.federated import LocalTraining, client_app, options_of

task, *files = sys.argv[1:]
given = {"task": task, "batch": 16, "learning_rate": 0.05, "epochs": 2}
sent = []  # arrays that left a device in the clear, as bytes

class Devices:
    run = type("Run", (), {"run_id": 1})

    def __init__(self):
        self.apps = [client_app(mods=[secaggplus_mod]) for _ in files]
        self.contexts = [
            Context(run_id=1, node_id=at, node_config={**given, "data": file}, state=RecordDict(), run_config={})
            for at, file in enumerate(files)
        ]

    def get_node_ids(self):
        return list(range(len(files)))

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            at = message.metadata.dst_node_id
            reply = self.apps[at](copy.deepcopy(message), self.contexts[at])
            sent.extend(array for record in reply.content.array_records.values() for array in record.values())
            replies.append(reply)
        return replies

first = LocalTraining(options_of({**given, "data": files[0]})).parameters()
three = dict(min_fit_clients=3, min_evaluate_clients=3, min_available_clients=3)
strategy = FedAvg(**three, initial_parameters=ndarrays_to_parameters(first))
server = LegacyContext(
    Context(run_id=1, node_id=9, node_config={}, state=RecordDict(), run_config={}),
    config=ServerConfig(num_rounds=2),
    strategy=strategy,
)
secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, clipping_range=4.0)
DefaultWorkflow(fit_workflow=secure)(Devices(), server)
print(json.dumps({"losses": [loss for _, loss in server.history.losses_distributed], "in the clear": len(sent)}))
"""


@pytest.fixture
def flower():
    """Flower's interpreter; ``SANDERLING_FLOWER_PYTHON`` names one that is elsewhere."""
    python = os.environ.get("SANDERLING_FLOWER_PYTHON") or ENVIRONMENT.python
    if python is None:
        pytest.skip("Flower's environment is missing: sanderling devices --install flower")
    return str(python)


@pytest.fixture
def start(work, environment):
    """Start programs that find this Sanderling and nothing else of ours; they are ended at last."""
    started = []
    variables = {**environment, "PYTHONPATH": str(import_path()), "FLWR_TELEMETRY_ENABLED": "0"}

    def run(*command):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": work, "env": variables}
        started.append(subprocess.Popen(command, **pipes))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def answer(process):
    """The JSON of its last line."""
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, stderr
    return json.loads(stdout.splitlines()[-1])


def test_devices_learn_in_the_rounds_of_a_server(flower, start, work):
    task = make_task(work)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server, devices = start(flower, "-c", SERVER, address), []
    for index in range(2):
        np.savez(work / f"{index}.npz", **dataset(60, seed=index + 1))
        options = {"server": address, "task": str(task), "data": f"{index}.npz", "batch": 16, "learning_rate": 0.05}
        devices.append(start(flower, "-m", "sanderling.learn.federated", json.dumps({**options, "epochs": 3})))

    losses, rounds = answer(server), [answer(device) for device in devices]

    assert len(losses) == 3
    assert losses[-1] < 0.8 * losses[0]
    assert [(each["fits"], each["evaluations"]) for each in rounds] == [(3, 3)] * 2


def test_server_that_adds_masked_parameters_sees_no_devices_own(flower, start, work):
    task, files = make_task(work), []
    for index in range(3):
        files.append(str(work / f"{index}.npz"))
        np.savez(files[-1], **dataset(60, seed=index + 1))

    told = answer(start(flower, "-c", SECURE, str(task), *files))

    assert told["losses"][1] < told["losses"][0] < 1.4
    assert told["in the clear"] == 0


def test_server_that_is_not_there_is_an_error(flower, start, work):
    task = make_task(work)
    np.savez(work / "0.npz", **dataset(60))
    options = {"server": "127.0.0.1:9", "task": str(task), "data": "0.npz"}
    process = start(flower, "-m", "sanderling.learn.federated", json.dumps(options))

    stdout, _ = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 1
    assert json.loads(stdout.splitlines()[-1])["error"].startswith("Flower server 127.0.0.1:9 is not reached or ended")
