"""Fakes stand for nvidia-smi and npu-smi: they print what the real ones are documented to print."""

from __future__ import annotations

import pytest

from sanderling.run.sensors import Card, Cards, Temperature
from tests.unit.run.sensors.trees import Clock, put_fake_program

# as `npu-smi info -l` and `npu-smi info -t common -i ID` print for a card of one chip (910B)
_NPU_LIST = """
	Total Count                    : 2

	NPU ID                         : 0
	Chip Count                     : 1

	NPU ID                         : 5
	Chip Count                     : 1
"""
_NPU_ONE_CHIP = """
	NPU ID                         : 0
	Chip Count                     : 1

	Chip ID                        : 0
	Memory Usage Rate(%)           : 6
	HBM Usage Rate(%)              : 0
	Aicore Freq(MHZ)               : 1000
	Temperature(C)                 : 46
	NPU Real-time Power(W)         : 69.0

	Chip Name                      : mcu
	Temperature(C)                 : 41
"""
# a card of two chips, whose controller alone knows the power (310P)
_NPU_TWO_CHIPS = """
	NPU ID                         : 5
	Chip Count                     : 2

	Chip ID                        : 0
	Temperature(C)                 : 45

	Chip ID                        : 1
	Temperature(C)                 : 47

	Chip Name                      : mcu
	Temperature(C)                 : 48
	NPU Real-time Power(W)         : 42.8
"""


def put_fake_npu_smi(folder, answers):
    """A fake npu-smi that prints each file whose name its arguments make, and otherwise fails."""
    for arguments, text in answers.items():
        (folder / arguments.replace(" ", "_")).write_text(text)
    put_fake_program(folder, "npu-smi", f'cd {folder}; IFS=_; exec cat "$*"')


@pytest.mark.usefixtures("programs")
def test_machine_without_the_programs_has_no_cards_and_no_events():
    events = []
    assert Cards(events.append).read() == ()
    assert events == []


def test_gpus_are_read_from_the_lines_of_nvidia_smi(programs):
    put_fake_program(programs, "nvidia-smi", "echo '0, 45, 68.25, 1024, 81559'; echo '1, 51, 70.00, 0, 81559'")
    assert Cards().read() == (
        Card("nvidia 0", (Temperature("nvidia 0", 45.0),), 68.25, 1024 << 20, 81559 << 20),
        Card("nvidia 1", (Temperature("nvidia 1", 51.0),), 70.0, 0, 81559 << 20),
    )


def test_nvidia_smi_is_asked_for_the_fields_that_are_read(programs):
    put_fake_program(programs, "nvidia-smi", f'echo "$@" > {programs}/asked; echo "0, 45, 68.25, 1024, 81559"')
    Cards().read()
    assert (programs / "asked").read_text().split() == [
        "--query-gpu=index,temperature.gpu,power.draw,memory.used,memory.total",
        "--format=csv,noheader,nounits",
    ]


def test_what_a_gpu_does_not_support_is_none(programs):
    put_fake_program(programs, "nvidia-smi", "echo '0, [N/A], [Not Supported], [Unknown Error], 2004'")
    assert Cards().read() == (Card("nvidia 0", (), None, None, 2004 << 20),)


def test_npus_are_read_chip_by_chip_without_their_controller(programs):
    put_fake_npu_smi(
        programs,
        {"info -l": _NPU_LIST, "info -t common -i 0": _NPU_ONE_CHIP, "info -t common -i 5": _NPU_TWO_CHIPS},
    )
    assert Cards().read() == (
        Card("npu 0", (Temperature("npu 0", 46.0),), 69.0),
        Card("npu 5", (Temperature("npu 5 chip 0", 45.0), Temperature("npu 5 chip 1", 47.0)), 42.8),
    )


def test_npu_without_chip_numbers_is_read_and_its_rated_power_is_not_taken_for_its_power(programs):
    shown = "NPU ID : 0\nTemperature (C) : 62\nRated Power Dissipation(W) : 12.8\n"
    put_fake_npu_smi(programs, {"info -l": "NPU ID : 0\n", "info -t common -i 0": shown})
    assert Cards().read() == (Card("npu 0", (Temperature("npu 0", 62.0),)),)


def test_driver_that_lists_no_npu_has_none_and_that_is_no_event(programs):
    put_fake_npu_smi(programs, {"info -l": "\tTotal Count                    : 0\n"})
    events = []
    assert Cards(events.append).read() == ()
    assert events == []


@pytest.mark.parametrize(
    ("program", "script", "reason"),
    [
        ("nvidia-smi", "exec sleep 30", "gave no answer for 0.2 s and was ended"),
        (
            "nvidia-smi",
            "echo 'No devices were found'; exit 6",
            "ended with exit code 6 and said 'No devices were found'",
        ),
        ("nvidia-smi", "exit 9", "ended with exit code 9 and said 'nothing'"),
        ("nvidia-smi", "echo '0, 45, 68.25'", "said '0, 45, 68.25': expected 5 values: index, temperature.gpu"),
        ("nvidia-smi", "printf '\\377\\376'", "said '\ufffd\ufffd': expected 5 values"),
        ("npu-smi", "echo hello", "said 'hello': expected lines 'NPU ID : number'"),
        ("npu-smi", "echo 'NPU ID : 0'", "said 'NPU ID : 0': expected a line 'Temperature(C) : number'"),
        ("npu-smi", "", "said 'nothing': expected lines 'NPU ID : number'"),
    ],
)
def test_program_that_hangs_fails_or_prints_garbage_is_one_event_and_no_card(programs, program, script, reason):
    put_fake_program(programs, program, script)
    events, clock = [], Clock()
    cards = Cards(events.append, timeout_s=0.2 if "sleep" in script else 30.0, clock=clock)
    assert [cards.read(), cards.read()] == [(), ()]
    clock.now_s = 61.0
    assert cards.read() == ()
    assert [(event.kind, event.subject) for event in events] == [("sensor-lost", program)]
    assert reason in events[0].reason


def test_program_that_cannot_be_started_is_one_event(programs):
    (programs / "nvidia-smi").write_text("#!/nowhere/interpreter\n")
    (programs / "nvidia-smi").chmod(0o755)
    events = []
    assert Cards(events.append).read() == ()
    assert "could not be started: No such file or directory" in events[0].reason


def test_program_that_hung_is_left_alone_then_asked_again_and_its_return_is_told(programs):
    put_fake_program(programs, "nvidia-smi", f"echo >> {programs}/calls; exec sleep 30")
    events, clock = [], Clock()
    cards = Cards(events.append, timeout_s=1.0, retry_s=60.0, clock=clock)
    cards.read()
    clock.now_s = 59.0
    cards.read()
    assert len((programs / "calls").read_text().splitlines()) == 1
    put_fake_program(programs, "nvidia-smi", "echo '0, 45, 68.25, 1024, 81559'")
    clock.now_s = 61.0
    assert [card.name for card in cards.read()] == ["nvidia 0"]
    assert [event.kind for event in events] == ["sensor-lost", "sensor-back"]


def test_one_program_that_fails_does_not_hide_the_cards_of_another(programs):
    put_fake_program(programs, "nvidia-smi", "exit 9")
    put_fake_npu_smi(programs, {"info -l": "NPU ID : 0\n", "info -t common -i 0": _NPU_ONE_CHIP})
    assert [card.name for card in Cards().read()] == ["npu 0"]
