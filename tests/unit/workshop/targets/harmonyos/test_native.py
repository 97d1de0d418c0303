"""The native library of offline models, compiled for this host with a runtime of the tests in the device's place."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sanderling.workshop.targets.harmonyos import toolchain
from tests.arkts import MODULE, SOURCES

SOURCE = MODULE / "src" / "main" / "cpp"
STUBS = Path(__file__).parents[4] / "data" / "ohos"
SCRIPT = Path(__file__).parents[4] / "data" / "arkts" / "offline.js"
WARNINGS = ("-Wall", "-Wextra", "-Werror")

LIFE = """
#include <cstdio>
#include <stdexcept>
#include "model.h"
extern "C" int live();
static std::vector<uint8_t> bytes(const char *text) { return {text, text + std::char_traits<char>::length(text)}; }
int main() {
    {
        sanderling::Model model(bytes("3"), "HIAI_F");
        static_cast<float *>(model.Inputs()[0].data)[2] = 21;
        model.Run();
        std::printf("%g %d ", static_cast<float *>(model.Outputs()[0].data)[2], live() > 0);
    }
    for (const char *text : {"bad", "old"}) {
        try {
            sanderling::Model model(bytes(text), "HIAI_F");
        } catch (const std::runtime_error &) {
            std::printf("%s ", text);
        }
    }
    std::printf("%d", live());
}
"""


@pytest.fixture(scope="module")
def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("the native library is not compiled: there is no g++")
    return found


@pytest.fixture(scope="module")
def node_headers(arkts) -> Path:  # noqa: ARG001 - Node is needed
    node = Path(str(toolchain._program("node"))).resolve()
    headers = node.parents[1] / "include" / "node"
    if not (headers / "node_api.h").is_file():
        pytest.skip("the native library is not compiled: Node.js has no headers here")
    return headers


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [[], ["-DSANDERLING_CANN"]])
def test_native_library_is_written_against_the_interfaces(compiler, node_headers, options):
    sources = sorted(SOURCE.glob("*.cpp"))
    assert len(sources) == 2
    headers = ("-I", STUBS, "-I", SOURCE, "-isystem", node_headers)
    run(compiler, "-std=c++17", *WARNINGS, "-fsyntax-only", *options, *headers, *sources)


def test_everything_that_a_model_takes_is_given_back(compiler, tmp_path):
    (tmp_path / "life.cpp").write_text(LIFE)
    sources = (tmp_path / "life.cpp", SOURCE / "model.cpp", STUBS / "runtime.cpp")
    headers = ("-I", STUBS, "-I", SOURCE)
    checks = ("-fsanitize=address,undefined", "-g")
    run(compiler, "-std=c++17", *WARNINGS, *checks, "-DSANDERLING_CANN", *headers, *sources, "-o", tmp_path / "life")
    assert run(tmp_path / "life") == "42 1 bad old 0"


def test_module_runs_an_offline_model_through_the_native_library(compiler, node_headers, tmp_path):
    library = tmp_path / "sanderling.node"
    sources = (*sorted(SOURCE.glob("*.cpp")), STUBS / "runtime.cpp")
    headers = ("-I", STUBS, "-I", SOURCE, "-isystem", node_headers)
    run(compiler, "-std=c++17", *WARNINGS, "-fPIC", "-shared", "-DSANDERLING_CANN", *headers, *sources, "-o", library)
    told = json.loads(toolchain.run_script(str(SCRIPT), [str(toolchain.TOOLS), str(SOURCES), str(library)]))
    assert told["takes"] == [True, False, False]
    assert told["output"] == {"name": "scores", "dtype": "float32", "shape": [1, 4], "values": [2, 4, 6, 8]}
    assert told["shape"] == "m.om takes input 0, 'image', as float32[1,4]: got float32[1,3]"
    assert told["failed"] == "nnrt failed on m.om: running the model failed with code 1"
    assert told["closed"] == "the model is closed"
    assert told["bad"] == "nnrt cannot load m.om: building the model failed with code 1"
    assert "compiled for another version or chip" in told["old"]
    assert told["device"] == "nnrt cannot load m.om: no device 'MALI': here are HIAI_F"
