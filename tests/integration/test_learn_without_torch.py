"""The README's commands for learning, with a device's environment that has no PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.learn.commands import ROOT, readme_commands, run_command
from benchmarks.zoo import dialect_data

pytest.importorskip("torch")


def test_readme_has_the_three_commands_in_their_order():
    words = [command[:3] if command[0] == "sanderling" else command[:1] for command in readme_commands()]
    assert words == [["python"], *[["sanderling", "learn", name] for name in ("prepare", "run", "apply")]]


@pytest.fixture(scope="module")
def device(tmp_path_factory) -> Path:
    """The Python of an environment with what a device needs, and nothing else."""
    folder = tmp_path_factory.mktemp("device")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["learn"]]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", *needed]
    done = subprocess.run(install, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"the device's packages cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


@pytest.mark.drill
@pytest.mark.skipif(not dialect_data.installed(), reason="espeak-ng is not installed")
def test_device_without_torch_learns_an_accent_by_the_readmes_commands(device, tmp_path):
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    missing = subprocess.run([device, "-c", "import torch"], env=plain, capture_output=True, check=False)
    assert b"ModuleNotFoundError" in missing.stderr

    data, prepare, run, apply = readme_commands()
    run_command(data, tmp_path)
    run_command(prepare, tmp_path)
    trained = run_command(run, tmp_path, python=str(device), environment=plain)
    assert trained["samples"] == 5 * 48 + 192
    assert trained["losses"][-1] < trained["losses"][0] / 2

    def accuracy(checkpoint):
        evaluate = (
            "import sys; from sanderling.learn import Trainer\n"
            "with Trainer('words.sdl') as trainer:\n"
            "    trainer.load(sys.argv[1]) if sys.argv[1] else None\n"
            "    print(trainer.evaluate('speech/others').accuracy)"
        )
        command = [device, "-c", evaluate, checkpoint]
        return float(subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, check=True).stdout)

    before, after = accuracy(""), accuracy("ck.safetensors")
    assert after > before + 0.1
    adapted = run_command(apply, tmp_path)
    fp32 = next(variant for variant in adapted["variants"] if variant["id"] == "fp32")
    assert fp32["accuracy"]["value"] == pytest.approx(100 * after, abs=0.3)
