"""What the vendors' programs say of their cards: ``nvidia-smi`` and ``npu-smi``, where they are on PATH."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from sanderling.core.errors import first_line
from sanderling.core.progress import Event
from sanderling.run.commands import run_command
from sanderling.run.sensors.temperatures import Temperature, believable

_MIB = 1 << 20
_NVIDIA_FIELDS = ("index", "temperature.gpu", "power.draw", "memory.used", "memory.total")
_NPU_TEMPERATURE = re.compile(r"(NPU )?Temperature ?\(C\)")
_NPU_POWER = re.compile(r"NPU Real-time Power ?\(W\)|Power Dissipation ?\(W\)")  # not the rated one


@dataclass(frozen=True)
class Card:
    """A card as its vendor's program describes it; None for what it does not say.

    Attributes:
        name: such as ``nvidia 0`` or ``npu 3``.
        temperatures: one a chip.
    """

    name: str
    temperatures: tuple[Temperature, ...]
    power_w: float | None = None
    memory_used_bytes: int | None = None
    memory_limit_bytes: int | None = None


class _FailedError(Exception):
    """A program hung, failed or printed what is not understood."""


_Ask = Callable[..., str]


class Cards:
    """Asks the programs that are here. One that hangs or fails is one event, and is left alone for a while.

    Args:
        on_event: told when a program is lost, and when it answers again.
        timeout_s: of one call of a program.
        retry_s: how long a program that failed is left alone.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        on_event: Callable[[Event], None] = lambda _: None,
        *,
        timeout_s: float = 2.0,
        retry_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_event = on_event
        self._timeout_s, self._retry_s = timeout_s, retry_s
        self._clock = clock
        self._retry_at: dict[str, float] = {}

    def read(self) -> tuple[Card, ...]:
        """Every card that a program tells of; none where there is no such program."""
        found: tuple[Card, ...] = ()
        for program, parse in _PROGRAMS.items():
            if self._clock() >= self._retry_at.get(program, -math.inf):
                found += self._read(program, parse)
        return found

    def _read(self, program: str, parse: Callable[[_Ask], tuple[Card, ...]]) -> tuple[Card, ...]:
        path = shutil.which(program)
        if path is None:
            return ()
        try:
            found = parse(lambda *arguments: self._ask(path, *arguments))
        except _FailedError as failure:
            if program not in self._retry_at:
                reason = f"{failure}; it is asked again every {self._retry_s:g} s"
                self._on_event(Event(kind="sensor-lost", subject=program, reason=reason))
            self._retry_at[program] = self._clock() + self._retry_s
            return ()
        if self._retry_at.pop(program, None) is not None:
            self._on_event(Event(kind="sensor-back", subject=program, reason="it answers again"))
        return found

    def _ask(self, path: str, *arguments: str) -> str:
        try:
            done = run_command([path, *arguments], timeout_s=self._timeout_s)
        except subprocess.TimeoutExpired as error:
            raise _FailedError(f"gave no answer for {self._timeout_s:g} s and was ended") from error
        except OSError as error:
            raise _FailedError(f"could not be started: {error.strerror or first_line(error)}") from error
        if done.returncode != 0:
            raise _FailedError(
                f"ended with exit code {done.returncode} and said '{_shown(done.stderr or done.stdout)}'"
            )
        return done.stdout


def _nvidia(ask: _Ask) -> tuple[Card, ...]:
    """One line a GPU; what a GPU does not support is ``[N/A]``, ``[Not Supported]`` or ``[Unknown Error]``.

    Source: the manual page nvidia-smi(1), "--query-gpu" and "--format"; memory is in MiB, power in watts.
    """
    said = ask(f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader,nounits")
    found = []
    for text in said.splitlines():
        index, *values = [value.strip() for value in text.split(",")]
        if not index.isdecimal() or len(values) != len(_NVIDIA_FIELDS) - 1:
            raise _not_understood(text, f"{len(_NVIDIA_FIELDS)} values: {', '.join(_NVIDIA_FIELDS)}")
        celsius, watts, used, limit = map(_number, values)
        name = f"nvidia {index}"
        found.append(Card(name, _told((name, celsius)), watts, _bytes(used), _bytes(limit)))
    return tuple(found)


def _ascend(ask: _Ask) -> tuple[Card, ...]:
    """Cards by ``npu-smi info -l``, then ``-t common`` of each: lines ``Key : value``, a block for each chip.

    Source: the npu-smi command reference of Ascend's drivers, "Query Common Information".
    """
    listed = ask("info", "-l")
    pairs = _pairs(listed)
    cards = [value for key, value in pairs if key == "NPU ID" and value.isdecimal()]
    if not cards and ("Total Count", "0") not in pairs:
        raise _not_understood(listed, "lines 'NPU ID : number'")
    return tuple(_npu(card, ask("info", "-t", "common", "-i", card)) for card in cards)


def _npu(card: str, said: str) -> Card:
    chip = "0"  # newer drivers show cards of one chip without its number
    celsius: dict[str, float | None] = {}
    watts: dict[str, float | None] = {}
    for key, value in _pairs(said):
        if key == "Chip ID":
            chip = value
        elif key == "Chip Name":  # the card's controller, which comes after the chips
            chip = ""
        elif _NPU_TEMPERATURE.fullmatch(key) and chip:
            celsius[chip] = _number(value)
        elif _NPU_POWER.fullmatch(key):
            watts[chip] = _number(value)
    if not celsius:
        raise _not_understood(said, "a line 'Temperature(C) : number'")
    name = f"npu {card}"
    names = [(name if len(celsius) == 1 else f"{name} chip {number}", value) for number, value in celsius.items()]
    whole_card = watts.pop("", None)
    of_chips = [value for value in watts.values() if value is not None]
    return Card(name, _told(*names), sum(of_chips) if of_chips else whole_card)


_PROGRAMS: dict[str, Callable[[_Ask], tuple[Card, ...]]] = {"nvidia-smi": _nvidia, "npu-smi": _ascend}


def _pairs(text: str) -> list[tuple[str, str]]:
    parted = (entry.partition(":") for entry in text.splitlines())
    return [(key.strip(), value.strip()) for key, colon, value in parted if colon]


def _told(*values: tuple[str, float | None]) -> tuple[Temperature, ...]:
    return tuple(Temperature(name, value) for name, value in values if value is not None and believable(value))


def _number(text: str) -> float | None:
    """A decimal number; None for words such as ``[N/A]``, ``NA`` and ``Failed``."""
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def _bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else int(mebibytes * _MIB)


def _not_understood(said: str, expected: str) -> _FailedError:
    return _FailedError(f"said '{_shown(said)}': expected {expected}")


def _shown(said: str) -> str:
    """The first line of what a program said, cut to a length that a message can hold."""
    lines = said.strip().splitlines() or ["nothing"]
    return lines[0] if len(lines[0]) <= 120 else f"{lines[0][:119]}…"
