"""Schemathesis on the OpenAPI document of a running server: whatever it sends, the document has the answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sanderling.serve.repository_settings import RepositorySettings
from sanderling.serve.settings import Limits, Settings
from tests.serving import running
from tests.unit.serve.packages import classifier_package

COMMAND = Path(sys.executable).with_name("schemathesis")
TOKEN = "secret"
LIMITS = Limits(body_bytes=1_000_000)
PREFIX = "/sanderling-nobody-"  # of shared memory, which there is none of
NAMES = {"path.name": "tiny", "path.version": "1", "path.region": "frames", "query.model": "tiny"}
UNLOADED = "/v2/repository/models/{name}/unload"  # not the model that everything else is about
UNBOUNDED = "/v1/live"  # a stream that goes on
CONFORMING_IS_NOT_ENOUGH = "positive_data_acceptance"  # a shape, say, has to fit the model and the data as well


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    for name in ("tiny", "other"):
        classifier_package(folder / f"{name}.sdl", name=name)
    settings = Settings(
        repository=folder,
        watching=RepositorySettings(interval_s=60.0, settle_s=0.0),
        http_port=0,
        grpc_port=None,
        metrics_port=None,
        token=TOKEN,
        shared_memory_prefix=PREFIX,
        limits=LIMITS,
    )
    with running(settings) as server:
        yield server.ends["http"].port


def fuzz(port: int, folder: Path, *options: object, names: bool, token: bool = True, timeout_s: float = 120) -> None:
    """Run it; every check but one."""
    settings = folder / "schemathesis.toml"
    known = "".join(f'"{name}" = "{value}"\n' for name, value in NAMES.items())
    other = f'[[operations]]\ninclude-path = "{UNLOADED}"\nparameters = {{ "path.name" = "other" }}\n'
    settings.write_text(f"[parameters]\n{known}{other}" if names else "")
    command = [COMMAND, "--config-file", settings, "run", f"http://127.0.0.1:{port}/openapi.json"]
    command += ["--exclude-path", UNBOUNDED, "--exclude-checks", CONFORMING_IS_NOT_ENOUGH, "--no-color"]
    command += ["--generation-database", "none", "--request-timeout", "20", "--warnings", "off", *options]
    command += ["-H", f"Authorization: Bearer {TOKEN}"] if token else []
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("names", [True, False], ids=["names that there are", "any names"])
def test_whatever_is_sent_the_answer_is_one_that_the_document_has(port, tmp_path, names):
    fuzz(port, tmp_path, "--seed", 7, "--max-examples", 6, "--phases", "coverage,fuzzing", names=names)


def test_without_the_token_no_control_route_does_anything(port, tmp_path):
    fuzz(
        port,
        tmp_path,
        *(
            "--seed",
            7,
            "--max-examples",
            3,
            "--phases",
            "coverage",
            "--include-path-regex",
            "/v1/control|/models/.*load",
        ),
        names=True,
        token=False,
    )


@pytest.mark.drill
@pytest.mark.parametrize("names", [True, False], ids=["names that there are", "any names"])
def test_whatever_is_sent_for_minutes_the_answer_is_one_that_the_document_has(port, tmp_path, names):
    fuzz(
        port,
        tmp_path,
        *("--max-examples", 400, "--phases", "coverage,fuzzing,stateful", "--max-time", 300, "--no-shrink"),
        names=names,
        timeout_s=900,
    )
