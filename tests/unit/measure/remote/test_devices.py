"""Devices over hdc and ssh, whose programs are stand-ins that say and do what a test wants."""

import pytest

from sanderling.core.errors import EngineError, OptionError, UnavailableError
from sanderling.measure.remote.devices import Ran, device_of, must
from sanderling.measure.remote.hdc import HdcDevice
from sanderling.measure.remote.ssh import SshDevice
from tests.remote import fake_hdc


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Make `hdc` and `ssh` a script."""

    def use(script):
        file = tmp_path / "program"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("HDC", str(file))
        monkeypatch.setenv("SANDERLING_SSH", str(file))

    return use


@pytest.fixture
def phone(tmp_path, monkeypatch):
    for name, value in fake_hdc(tmp_path, "KEY other:5555").items():
        monkeypatch.setenv(name, value)
    device = HdcDevice("KEY")
    device.reach()
    return device


def test_name_of_a_host_has_no_login_and_no_port():
    assert device_of("ssh:me@board.local:2222").name == "ssh:board.local"
    assert device_of("hdc:192.168.1.5:5555").name == "hdc:192.168.1.5:5555"


@pytest.mark.parametrize("on", ["", "ssh", "ssh:", "usb:x", "hdc:-t", "ssh:host:port"])
def test_what_is_no_device_is_refused(on):
    with pytest.raises(OptionError, match="--on '"):
        device_of(on)


def test_hdc_tells_exit_codes_that_it_does_not_have_itself(phone):
    assert phone.run("echo told; exit 3", timeout_s=20) == Ran(3, "told\n")
    assert phone.run("true", timeout_s=20).code == 0
    assert phone.run("no-such-command", timeout_s=20).code == 127
    with pytest.raises(EngineError, match=r"hdc:KEY: 'echo why; false' failed: why"):
        must(phone, "echo why; false")


def test_hdc_copies_there_and_back(phone, tmp_path):
    (tmp_path / "here").write_bytes(bytes(range(256)))
    phone.push(tmp_path / "here", "/data/local/tmp/there")
    phone.pull("/data/local/tmp/there", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == bytes(range(256))
    with pytest.raises(EngineError, match="none could not be copied from hdc:KEY"):
        phone.pull("/data/local/tmp/none", tmp_path / "none")
    with pytest.raises(EngineError, match="here could not be copied to hdc:KEY"):
        phone.push(tmp_path / "here", "/data/local/tmp/no/folder")


def test_hdc_without_devices_says_so(tmp_path, monkeypatch):
    for name, value in fake_hdc(tmp_path, "").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError, match="no device 'KEY': connected are none"):
        HdcDevice("KEY").reach()


@pytest.mark.parametrize("device", [HdcDevice, SshDevice])
def test_device_that_hangs_is_left_after_a_time(program, device):
    program("exec sleep 60")
    with pytest.raises(EngineError, match=r"gave no answer for 0\.3 s"):
        device("one").run("true", timeout_s=0.3)


def test_lost_connection_is_told_by_its_own_words(program):
    program("echo 'Connection closed by remote host' >&2; exit 255")
    with pytest.raises(EngineError, match="ssh:one cannot be reached: Connection closed by remote host"):
        SshDevice("one").run("true", timeout_s=20)
    with pytest.raises(UnavailableError, match=r"Connection closed.*try ssh one true"):
        SshDevice("one").reach()


def test_program_that_crashes_is_told(program):
    program("echo 'Segmentation fault' >&2; exit 139")
    with pytest.raises(EngineError, match="hdc:one cannot be reached: Segmentation fault"):
        HdcDevice("one").run("true", timeout_s=20)


def test_answer_of_hdc_without_an_exit_code_is_no_success(program):
    program("echo '[Fail]ExecuteCommand need connect-key? please confirm a device by help info'")
    with pytest.raises(EngineError, match=r"hdc:one ran no command: .*need connect-key"):
        HdcDevice("one").run("true", timeout_s=20)


def test_failed_copy_leaves_no_file(program, tmp_path):
    program("echo half; echo 'No such file' >&2; exit 1")
    with pytest.raises(EngineError, match="none could not be copied from ssh:one: No such file"):
        SshDevice("one").pull("none", tmp_path / "none")
    assert not (tmp_path / "none").exists()
