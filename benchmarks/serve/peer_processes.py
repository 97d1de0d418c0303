"""Peers as processes: their environments, what each needs to serve a graph, and how it is started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sanderling.core.errors import UnavailableError

SCRIPTS = Path(__file__).parent / "peer_servers"
REQUIREMENTS = {
    "triton": ("nvidia-pytriton==0.7.0", "numpy<2", "onnxruntime"),
    "litserve": ("litserve==0.2.19", "onnxruntime", "numpy", "python-multipart"),
    "kserve": ("kserve==0.21.0", "onnxruntime"),
    "mlserver": ("mlserver==1.7.1", "onnxruntime", "uvloop==0.21.0"),
}
_READY_S = 90.0
_STOP_S = 10.0


@dataclass(frozen=True)
class Graph:
    """A graph with one input and one output, rows first, both float32."""

    name: str
    path: Path
    package: Path
    input: str
    row_shape: tuple[int, ...]
    output: str
    output_size: int


@dataclass(frozen=True)
class Peer:
    """A way of starting a server.

    Attributes:
        name: of the peer.
        environment: that it runs in.
        delay_us: that it waits for a batch to fill; None where it cannot.
        kinds: of its ends that are measured, of ``http``, ``grpc``, ``form`` and ``memory``.
    """

    name: str
    environment: str
    delay_us: int | None
    kinds: tuple[str, ...]


@dataclass
class Running:
    """A server that runs.

    Attributes:
        ports: by ``http`` and ``grpc``.
    """

    peer: Peer
    process: subprocess.Popen[bytes]
    ports: Mapping[str, int]
    log: Path


@dataclass(frozen=True)
class Command:
    """What is started."""

    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


PEERS = (
    Peer("Triton", "triton", 0, ("http", "grpc")),
    Peer("Triton", "triton", 1000, ("http", "grpc")),
    Peer("pytriton", "triton", 0, ("http", "grpc")),
    Peer("pytriton", "triton", 1000, ("http", "grpc")),
    Peer("KServe", "kserve", None, ("grpc",)),
    Peer("LitServe", "litserve", 0, ("form",)),
    Peer("LitServe", "litserve", 1000, ("form",)),
    Peer("MLServer", "mlserver", 1000, ("grpc",)),
)
OURS = Peer("Sanderling", "", None, ("http", "grpc", "memory"))


def make_environment(name: str, folder: Path) -> Path:
    """A virtual environment of a peer, made where it is not there; returns its Python.

    Raises:
        UnavailableError: pip fails.
    """
    target = folder / name
    python = target / "bin" / "python"
    done = target / ".complete"
    if done.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", target], check=True)
    ran = subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS[name]], capture_output=True, text=True)
    if ran.returncode:
        raise UnavailableError(f"pip cannot install {', '.join(REQUIREMENTS[name])}: {ran.stderr.strip()[-300:]}")
    done.touch()
    return python


@contextmanager
def running(peer: Peer, graph: Graph, environments: Path, folder: Path) -> Iterator[Running]:
    """Start a server and end it again.

    Raises:
        UnavailableError: it ends at once, or is not ready in time; the message has the end of what it printed.
    """
    ports = {"http": _free_port(), "grpc": _free_port()}
    folder.mkdir(parents=True)
    command = _command(peer, graph, environments, folder, ports)
    log = folder / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command.arguments),
            cwd=folder,
            env={**os.environ, **command.variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for_ports(process, [ports["http" if kind != "grpc" else "grpc"] for kind in peer.kinds], log)
        yield Running(peer, process, ports, log)
    finally:
        _end(process)


def _command(peer: Peer, graph: Graph, environments: Path, folder: Path, ports: Mapping[str, int]) -> Command:
    http, grpc = str(ports["http"]), str(ports["grpc"])
    if not peer.environment:
        program = "from sanderling.cli import main; main()"
        options = ["--http", http, "--grpc", grpc, "--metrics", "-1", "--threads", "1", "--shared-memory-prefix", "/"]
        return Command([sys.executable, "-c", program, "serve", str(graph.package), *options])
    python = make_environment(peer.environment, environments)
    path, shape, delay = str(graph.path), json.dumps(graph.row_shape), str(peer.delay_us or 0)
    scripts = {"PYTHONPATH": str(SCRIPTS)}
    if peer.name == "Triton":
        return _triton(peer, graph, python, folder, ports)
    if peer.name == "pytriton":
        script = str(SCRIPTS / "pytriton_server.py")
        arguments = [script, path, graph.name, shape, str(graph.output_size), delay, http, grpc]
        libraries = {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))}
        return Command([str(python), *arguments], {**scripts, **libraries, "PATH": _path_with(python)})
    if peer.name == "LitServe":
        return Command([str(python), str(SCRIPTS / "litserve_server.py"), path, shape, delay, http], scripts)
    if peer.name == "KServe":
        return Command([str(python), str(SCRIPTS / "kserve_server.py"), path, graph.name, http, grpc], scripts)
    return _mlserver(peer, graph, python, folder, ports)


def _triton(peer: Peer, graph: Graph, python: Path, folder: Path, ports: Mapping[str, int]) -> Command:
    """Bare Triton, from the wheel of pytriton, with its Python backend."""
    packages = next((python.parents[1] / "lib").glob("python*")) / "site-packages"
    server = packages / "pytriton" / "tritonserver"
    backend = folder / "backends" / "python"
    shutil.copytree(server / "backends" / "python", backend)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy2(server / "python_backend_stubs" / version / "triton_python_backend_stub", backend)
    model = folder / "models" / graph.name
    (model / "1").mkdir(parents=True)
    shutil.copy2(SCRIPTS / "triton_model.py", model / "1" / "model.py")
    shutil.copy2(SCRIPTS / "onnx_rows.py", model / "1")
    dims = ", ".join(map(str, graph.row_shape))
    (model / "config.pbtxt").write_text(
        f'name: "{graph.name}"\nbackend: "python"\nmax_batch_size: 8\n'
        f'input [ {{ name: "{graph.input}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]\n'
        f'output [ {{ name: "{graph.output}" data_type: TYPE_FP32 dims: [ {graph.output_size} ] }} ]\n'
        "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
        f"dynamic_batching {{ max_queue_delay_microseconds: {peer.delay_us} }}\n"
        f'parameters {{ key: "path" value: {{ string_value: "{graph.path}" }} }}\n'
    )
    libraries = [sysconfig.get_config_var("LIBDIR"), server / "external_libs", packages / "nvidia_pytriton.libs"]
    arguments = [
        str(server / "bin" / "tritonserver"),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={folder / 'backends'}",
        f"--http-port={ports['http']}",
        f"--grpc-port={ports['grpc']}",
        "--http-address=127.0.0.1",
        "--grpc-address=127.0.0.1",
        "--allow-metrics=false",
        "--log-info=false",
    ]
    variables = {
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "PYTHONPATH": str(packages),
        "PATH": _path_with(python),
    }
    return Command(arguments, variables)


def _mlserver(peer: Peer, graph: Graph, python: Path, folder: Path, ports: Mapping[str, int]) -> Command:
    settings = {
        "host": "127.0.0.1",
        "http_port": ports["http"],
        "grpc_port": ports["grpc"],
        "metrics_port": _free_port(),
        "parallel_workers": 0,
        "grpc_max_message_length": 2**26,
    }
    model = {
        "name": graph.name,
        "implementation": "mlserver_runtime.Rows",
        "max_batch_size": 8,
        "max_batch_time": (peer.delay_us or 0) / 1e6,
        "parameters": {"uri": str(graph.path)},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    return Command([str(python.with_name("mlserver")), "start", str(folder)], {"PYTHONPATH": str(SCRIPTS)})


def _path_with(python: Path) -> str:
    return f"{python.parent}:{os.environ['PATH']}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_ports(process: subprocess.Popen[bytes], ports: Sequence[int], log: Path) -> None:
    end_s = time.monotonic() + _READY_S
    for port in ports:
        while True:
            if process.poll() is not None or time.monotonic() > end_s:
                told = log.read_text("utf-8", "replace").strip()[-800:]
                why = "ended" if process.poll() is not None else f"is not ready after {_READY_S:g} s"
                raise UnavailableError(f"it {why}: {told}")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and what it started."""
    tree = [process.pid]
    if process.poll() is None:
        tree += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    for pid in tree:
        if psutil.pid_exists(pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    process.wait()


def post(url: str, body: bytes) -> None:
    """Send a request of JSON, and wait for its answer."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()
