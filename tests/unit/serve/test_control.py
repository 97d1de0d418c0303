import json

import pytest
from starlette.testclient import TestClient

from sanderling.serve.dashboard import assets, dashboard_routes
from sanderling.serve.http.routes import make_app
from sanderling.serve.live import Live
from sanderling.serve.log import Log
from sanderling.serve.metrics import Metrics
from sanderling.serve.services import Services
from sanderling.serve.settings import Settings

TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def client_of(tiny_package):
    """A client of everything that a data plane's server shows."""
    opened = []

    def make(plane):
        services = Services(Settings(packages=(tiny_package,), token="secret"), plane, Log())
        live = Live(plane, interval_s=3600.0)
        opened.append(live)
        client = TestClient(make_app(services, dashboard_routes(services, live, Metrics(plane))))
        client.live = live
        return client

    yield make
    for live in opened:
        live.close()


@pytest.fixture
def client(client_of, emulated_plane):
    """The model ``tiny`` on an emulated NPU and GPU."""
    return client_of(emulated_plane)


COMMANDS = ["switch", "load", "release", "policy/try"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "secret"},
        {"Authorization": "Basic secret"},
        {"Authorization": "Bearer sécret".encode("latin-1")},
        {"Cookie": "token=secret"},
    ],
    ids=["none", "wrong", "empty", "no kind", "other kind", "not ASCII", "cookie"],
)
def test_command_without_the_token_is_refused(client, command, headers):
    answer = client.post(f"/v1/control/{command}", json={"model": "tiny", "policy": "{}"}, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "token" in answer.json()["error"]


def test_policy_is_not_shown_without_the_token(client):
    assert client.get("/v1/control/policy?model=tiny").status_code == 401


def test_switch_changes_the_way_of_running_and_the_event_says_so(client, emulated_plane):
    answer = client.post("/v1/control/switch", json={"model": "tiny", "device": "gpu"}, headers=TOKEN)
    assert answer.json() == {"lane": "emulated/gpu/int8"}
    assert emulated_plane.model("tiny").session.lane == "emulated/gpu/int8"
    assert (client.live.events[-1].kind, client.live.events[-1].reason) == ("switched", "asked for")


def test_switch_without_a_wish_lets_the_policy_choose(client):
    client.post("/v1/control/switch", json={"model": "tiny", "device": "gpu"}, headers=TOKEN)
    answer = client.post("/v1/control/switch", json={"model": "tiny"}, headers=TOKEN)
    assert answer.json() == {"lane": "emulated/npu/int8"}


def test_released_model_is_loaded_again(client, emulated_plane):
    session = emulated_plane.model("tiny").session
    released = client.post("/v1/control/release", json={"model": "tiny"}, headers=TOKEN).json()
    assert released["released"]
    assert released["released_bytes"] > 0
    assert not session.is_loaded
    assert client.post("/v1/control/load", json={"model": "tiny"}, headers=TOKEN).json()["size_bytes"] > 0
    assert session.is_loaded


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"model": "tiny", "device": "tpu"}, 400, "available are emulated/npu/int8"),
        ({"model": "other"}, 404, "available are tiny"),
        ({"model": "tiny", "version": "9"}, 404, "no version '9'"),
        ({"model": "tiny", "lane": 1}, 400, "expected model, version, device, precision"),
        ({}, 400, "model"),
        ([], 400, "expected model"),
        ("x" * 2_000_000, 413, "more than"),
    ],
)
def test_wrong_command_is_answered_with_what_is_expected(client, body, status, said):
    answer = client.post("/v1/control/switch", json=body, headers=TOKEN)
    assert answer.status_code == status
    assert said in answer.json()["error"]


def test_command_by_get_is_not_known(client):
    assert client.get("/v1/control/switch", headers=TOKEN).status_code == 405


def test_policy_in_use_is_one_that_can_be_tried(client, emulated_plane, ask):
    ask(emulated_plane, 20)
    client.live.tick()
    text = client.get("/v1/control/policy?model=tiny", headers=TOKEN).json()["policy"]
    trial = client.post("/v1/control/policy/try", json={"model": "tiny", "policy": text}, headers=TOKEN).json()
    assert trial["requests"] == 20
    assert trial["current"] == trial["proposed"]
    assert trial["proposed"]["in_time"] == 1.0


def test_policy_with_an_unknown_key_is_told_with_what_was_meant(client):
    command = {"model": "tiny", "policy": json.dumps({"devicePriority": ["npu"]})}
    answer = client.post("/v1/control/policy/try", json=command, headers=TOKEN)
    assert answer.status_code == 400
    assert "did you mean 'devicePriorities'?" in answer.json()["error"]


def test_trial_changes_nothing(client, emulated_plane, ask):
    ask(emulated_plane)
    client.live.tick()
    before = emulated_plane.model("tiny").session.policy
    command = {"model": "tiny", "policy": '{"devicePriorities": ["npu"]}'}
    assert client.post("/v1/control/policy/try", json=command, headers=TOKEN).status_code == 200
    assert emulated_plane.model("tiny").session.policy == before


def test_page_and_everything_that_it_names_come_from_here(client):
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    for name in assets():
        answer = client.get(f"/dashboard/{name}")
        assert answer.status_code == 200
        assert "https://" not in answer.text
    assert "<script>" not in page.text
    assert "style=" not in page.text


def test_page_is_sent_once_while_it_is_unchanged(client):
    tag = client.get("/dashboard/app.js").headers["etag"]
    answer = client.get("/dashboard/app.js", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.content) == (304, b"")


def test_page_is_small():
    assert sum(len(asset.content) for asset in assets().values()) < 300_000


@pytest.mark.parametrize("name", ["none.js", "..%2f__init__.py", "%2e%2e%2fcontrol.py", "__init__.py", "page"])
def test_no_other_file_can_be_reached(client, name):
    assert client.get(f"/dashboard/{name}").status_code == 404


def test_snapshot_can_be_had_once_as_json(client):
    value = client.get("/v1/live/now").json()
    assert value["setup"]["models"][0]["key"] == "tiny:1"
    assert "secret" not in json.dumps(value)


def test_metrics_are_in_prometheus_format(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "sanderling_model_ready" in answer.text
