"""A task as a client of Flower, so that many devices learn together and no data leaves any of them.

Flower (``flwr``) pins other versions of our own packages: where it is not installed beside us, it runs in an
environment of its own, see ``run/environments.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import DataError, EngineError, OptionError, UnavailableError, first_line
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import Array
from sanderling.learn.data import read_data
from sanderling.learn.running import parse_optimizer
from sanderling.learn.trainer import Trainer
from sanderling.run.environments import Environment, import_path

ENVIRONMENT = Environment(
    "flower",
    requirements=(
        "flwr==1.42.0",
        "numpy==2.4.6",
        "onnxruntime==1.32.0",
        "pillow>=11",
        "psutil>=5.9",
        "pydantic>=2.11",
        "safetensors>=0.5",
    ),
    imports=("flwr.client", "onnxruntime", "safetensors.numpy"),
    size_bytes=700_000_000,
)
_SERVER_ERROR = 1


@dataclass(frozen=True)
class FederatedOptions:
    """How a device takes part.

    Attributes:
        server: ``HOST:PORT`` of a Flower server.
        task: package.
        data: that stays here.
        evaluation: data that the server's evaluations are made on; ``data`` itself by default.
        epochs: of each round.
        batch: samples of a micro-batch.
        optimizer: with settings as ``adamw:weight_decay=0.1``; begins anew in each round.
        learning_rate: the highest; the optimiser's own by default.
        accumulate: micro-batches of an update.
        seed: of the order of samples; each round has another order.
        threads: of one call.
        root_certificates: file with the certificates that the server is known by; without, nothing is encrypted.
    """

    server: str
    task: str
    data: str
    evaluation: str | None = None
    epochs: int = 1
    batch: int = 32
    optimizer: str = "adamw"
    learning_rate: float | None = None
    accumulate: int = 1
    seed: int = 0
    threads: int = 0
    root_certificates: str | None = None


@dataclass
class Rounds:
    """What has happened so far."""

    fits: int = 0
    evaluations: int = 0
    loss: float | None = None
    accuracy: float | None = None


class LocalTraining:
    """What a client does in a round, without anything of Flower: arrays in the order of the task's parameters.

    Args:
        options: of the device.
        progress: told about rounds.
    """

    def __init__(self, options: FederatedOptions, progress: Progress | None = None) -> None:
        self._progress = progress or Silent()
        self.options = options
        self.rounds = Rounds()
        kind, settings = parse_optimizer(options.optimizer)
        self.trainer = Trainer(
            options.task,
            optimizer=kind,
            settings=settings,
            learning_rate=options.learning_rate,
            accumulate=options.accumulate,
            seed=options.seed,
            threads=options.threads,
            progress=self._progress,
        )
        manifest = self.trainer.task.package.manifest
        self._data = read_data(self.trainer.spec, manifest, options.data, self._progress)
        self._evaluation = (
            read_data(self.trainer.spec, manifest, options.evaluation, self._progress)
            if options.evaluation
            else self._data
        )

    def parameters(self) -> list[Array]:
        """Current values."""
        return [self.trainer.state.parameters[each.name].copy() for each in self.trainer.spec.parameters]

    def fit(self, arrays: Sequence[Array]) -> tuple[list[Array], int, dict[str, float]]:
        """Train from the server's values; returns new ones, the number of samples, and the loss.

        Raises:
            WeightsError: the arrays are not this task's.
            NotMetError: the loss is not finite.
        """
        self._take(arrays)
        self.trainer.restart_optimizer()
        self.trainer.options = replace(self.trainer.options, seed=self.options.seed + self.rounds.fits)
        result = self.trainer.fit(self._data, epochs=self.options.epochs, batch=self.options.batch)
        self.rounds.fits += 1
        self.rounds.loss = loss = result.losses[-1]
        told = "no label counts" if loss is None else f"loss {loss:.4g}"
        reason = f"{result.updates} updates on {len(self._data)} samples, {told}"
        self._progress.event(Event(kind="round", subject=str(self.rounds.fits), reason=reason))
        return self.parameters(), len(self._data), {} if loss is None else {"loss": loss}

    def evaluate(self, arrays: Sequence[Array]) -> tuple[float, int, dict[str, float]]:
        """Evaluate the server's values; returns the loss, the number of samples, and accuracy where there is one."""
        self._take(arrays)
        found = self.trainer.evaluate(self._evaluation)
        self.rounds.evaluations += 1
        self.rounds.loss, self.rounds.accuracy = found.loss, found.accuracy
        return found.loss, found.samples, {} if found.accuracy is None else {"accuracy": found.accuracy}

    def close(self) -> None:
        """Give back what the trainer holds."""
        self.trainer.close()

    def _take(self, arrays: Sequence[Array]) -> None:
        names = [each.name for each in self.trainer.spec.parameters]
        if len(arrays) != len(names):
            raise DataError(
                f"the server sent {len(arrays)} arrays, the task has {len(names)} parameters: it runs another task"
            )
        # a server that has added masked integers up returns float64
        floats = [array.astype(np.float32) if array.dtype.kind == "f" else array for array in arrays]
        self.trainer.replace_parameters(dict(zip(names, floats, strict=True)))


def client_app(options: FederatedOptions | None = None, mods: Sequence[Any] = ()) -> Any:  # noqa: ANN401 - of Flower
    """A ``ClientApp`` for a SuperNode, whose ``--node-config`` says ``task``, ``data`` and other options.

    Args:
        options: of the device; those of the node's configuration by default.
        mods: of Flower, such as ``secaggplus_mod`` for secure aggregation.

    Raises:
        UnavailableError: Flower is not installed here.
    """
    flower = _flower()
    held: dict[FederatedOptions, LocalTraining] = {}

    def client_fn(context: Any) -> Any:  # noqa: ANN401 - of Flower
        asked = options or options_of(context.node_config)
        if asked not in held:
            held[asked] = LocalTraining(asked)
        return _client(flower, held[asked])

    return flower.ClientApp(client_fn, mods=list(mods))


def options_of(config: Mapping[str, Any]) -> FederatedOptions:
    """Options from a node's configuration.

    Raises:
        OptionError: ``task`` or ``data`` is missing.
    """
    missing = [name for name in ("task", "data") if not config.get(name)]
    if missing:
        raise OptionError(
            f"the node's configuration has no '{missing[0]}': start it with --node-config 'task=… data=…'"
        )
    known = FederatedOptions.__dataclass_fields__
    return FederatedOptions(**{"server": "", **{name: value for name, value in config.items() if name in known}})


def join(options: FederatedOptions, progress: Progress | None = None) -> Rounds:
    """Take part until the server ends it.

    Raises:
        OptionError: an option, or the data, does not fit.
        UnavailableError: Flower is not installed, or the server is not reached.
        EngineError: Flower's own process failed.
    """
    progress = progress or Silent()
    if options.root_certificates and not Path(options.root_certificates).is_file():
        raise OptionError(f"--root-certificates {options.root_certificates} is no file: expected certificates as PEM")
    if find_spec("flwr") is not None:
        return _join_here(options, progress)
    python = ENVIRONMENT.python
    if python is None:
        raise UnavailableError(
            "learning together needs Flower, which pins other versions of our packages: make its environment with "
            "sanderling devices --install flower"
        )
    progress.stage(f"join {options.server}")
    command = [str(python), "-m", __name__, json.dumps(asdict(options))]
    variables = {**os.environ, "PYTHONPATH": str(import_path()), "FLWR_TELEMETRY_ENABLED": "0"}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise EngineError(f"Flower's client ended with {done.returncode} and no answer") from error
    if "error" in answer:
        raise UnavailableError(answer["error"])
    return Rounds(**answer)


def _join_here(options: FederatedOptions, progress: Progress) -> Rounds:
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    flower = _flower()
    training = LocalTraining(options, progress)
    certificates = Path(options.root_certificates).read_bytes() if options.root_certificates else None
    try:
        flower.start_client(
            server_address=options.server,
            client=_client(flower, training),
            root_certificates=certificates,
            insecure=certificates is None,
            max_retries=3,
        )
    except Exception as error:
        raise UnavailableError(
            f"Flower server {options.server} is not reached or ended: {first_line(error)}"
        ) from error
    finally:
        training.close()
    return training.rounds


def _client(flower: Any, training: LocalTraining) -> Any:  # noqa: ANN401 - of Flower
    class TaskClient(flower.NumPyClient):  # type: ignore[misc]
        """Flower's client, which gives everything to ``training``."""

        def get_parameters(self, config: Mapping[str, Any]) -> list[Array]:  # noqa: ARG002
            return training.parameters()

        def fit(self, parameters: Sequence[Array], config: Mapping[str, Any]) -> Any:  # noqa: ANN401, ARG002
            return training.fit(parameters)

        def evaluate(self, parameters: Sequence[Array], config: Mapping[str, Any]) -> Any:  # noqa: ANN401, ARG002
            return training.evaluate(parameters)

    return TaskClient().to_client()


def _flower() -> Any:  # noqa: ANN401 - a module
    try:
        import flwr.client
    except ImportError as error:
        raise UnavailableError(
            "Flower is not installed here: run this in its environment, made by sanderling devices --install flower"
        ) from error
    return flwr.client


def _main(argument: str) -> int:
    from sanderling.core.errors import SanderlingError

    try:
        answer = asdict(_join_here(FederatedOptions(**json.loads(argument)), _Told()))
    except SanderlingError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if "error" not in answer else _SERVER_ERROR


class _Told(Silent):
    """Events on stderr, for whoever started this process."""

    def event(self, event: Event) -> None:
        sys.stderr.write(f"note: {event}\n")


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
