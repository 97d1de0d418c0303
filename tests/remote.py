"""Devices for tests: a real SSH server on this machine, and the fake `hdc`."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_PATIENCE_S = 10
_CONFIG = """Host board
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile {folder}/known
  LogLevel ERROR
"""
_SERVER = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
"""


@contextlib.contextmanager
def ssh_server(folder: Path) -> Iterator[str]:
    """A server on the loopback that lets this user in; yields the client's command, in which it is the host `board`.

    Skips the test where OpenSSH's server is missing or does not start.
    """
    server, client = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.defpath), shutil.which("ssh")
    if server is None or client is None:
        pytest.skip(f"no OpenSSH {'client' if client is None else 'server'} here: apt install openssh-server")
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    port = free_port()
    (folder / "config").write_text(_CONFIG.format(port=port, folder=folder, user=getpass.getuser()))
    (folder / "sshd_config").write_text(_SERVER.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # which a server of root wants to be there
    words = [server, "-D", "-f", str(folder / "sshd_config"), "-E", str(folder / "log")]
    process = subprocess.Popen(words)
    try:
        wait_for(port, process, folder / "log")
        yield f"{client} -F {folder}/config"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_PATIENCE_S)


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen, log: Path) -> None:
    """Until the server answers; skips the test when it ends instead."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.skip(f"the OpenSSH server does not start here: {log.read_text().strip().splitlines()[-1:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    pytest.skip("the OpenSSH server does not answer here")


def fake_hdc(folder: Path, keys: str = "ABC123") -> dict[str, str]:
    """Variables with which `hdc` is the fake, and its device a folder below ``folder``."""
    program, root = folder / "hdc", folder / "device"
    root.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).with_name("fake_hdc.py")} "$@"\n')
    program.chmod(0o755)
    return {"HDC": str(program), "FAKE_HDC_ROOT": str(root), "FAKE_HDC_KEYS": keys}
