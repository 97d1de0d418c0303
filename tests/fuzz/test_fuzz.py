"""A fuzzer finds nothing in some seconds (``make test``) or minutes (``make drill``) that is no error of ours."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.seeds import seeds, words

CORPUS = Path(__file__).with_name("corpus")  # what earlier runs found worth keeping
TARGETS = (
    "infer_request",
    "grpc_message",
    "binary_tensor",
    "json_tensor",
    "json_text",
    "request_head",
    "packed_body",
)

if importlib.util.find_spec("atheris") is None:
    pytest.skip(f"atheris has no wheel for Python {sys.version_info[0]}.{sys.version_info[1]}", allow_module_level=True)


def fuzz(target: str, folder: Path, *options: str, timeout_s: float) -> None:
    """Run the harness; a failure shows the input that it failed with."""
    for number, seed in enumerate(seeds(target)):
        (folder / f"seed-{number}").write_bytes(seed)
    dictionary = folder.parent / f"{folder.name}.dict"
    dictionary.write_text(words())
    known = CORPUS / target
    found = folder.parent / f"{folder.name}-found"
    found.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.harness",
        target,
        str(folder),
        *([str(known)] if known.is_dir() else []),
    ]
    limits = ["-timeout=20", "-rss_limit_mb=2048", "-max_len=4096", f"-dict={dictionary}", f"-artifact_prefix={found}/"]
    done = subprocess.run([*command, *limits, *options], capture_output=True, text=True, timeout=timeout_s)
    kept = [f"{path.name}: {path.read_bytes()!r}" for path in found.iterdir()]
    assert (done.returncode, kept) == (0, []), done.stdout[-4000:] + done.stderr[-4000:]
    assert "Done " in done.stderr, done.stderr[-4000:]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_that_is_made_up_in_seconds_is_read_wrong(target, tmp_path):
    fuzz(target, tmp_path, "-seed=7", "-runs=10000", "-max_total_time=20", timeout_s=120)


@pytest.mark.drill
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_that_is_made_up_in_minutes_is_read_wrong(target, tmp_path):
    fuzz(target, tmp_path, "-max_total_time=180", timeout_s=600)
