"""Parameters of a request that the protocol's extensions define, the same over HTTP and gRPC.

Source: Triton Inference Server, protocol extensions "Schedule Policy" and "Sequence". Other parameters are a client's
own and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from sanderling.core.errors import OptionError

DEFAULT_LEVEL = 5  # of the protocol's priorities, of which 1 is the highest
_LOWEST = -100


def read_deadline_ms(parameters: Mapping[str, object], left_ms: float | None = None) -> float | None:
    """Milliseconds from now in which the result is of use.

    Args:
        parameters: ``timeout``, in microseconds; 0 is none.
        left_ms: of the call's own deadline; the shorter one counts.

    Raises:
        OptionError: the timeout is no whole number ≥ 0.
    """
    timeout_us = parameters.get("timeout", 0)
    if type(timeout_us) is not int or timeout_us < 0:
        raise OptionError(f"parameter timeout is {timeout_us!r:.60}: expected a whole number of microseconds ≥ 0")
    if not timeout_us:
        return left_ms
    return timeout_us / 1e3 if left_ms is None else min(timeout_us / 1e3, left_ms)


def read_priority(parameters: Mapping[str, object]) -> int:
    """Priority as of ``Session.run``.

    Raises:
        OptionError: it is no whole number ≥ 0.
    """
    level = parameters.get("priority", 0)
    if type(level) is not int or level < 0:
        raise OptionError(
            f"parameter priority is {level!r:.60}: expected a whole number ≥ 0, of which 1 is served first"
        )
    return to_priority(level)


def to_priority(level: int) -> int:
    """Our priority for one of the protocol's levels: 1 is the highest, 5 the default, more is background work."""
    return max(DEFAULT_LEVEL - level, _LOWEST) if level else 0


def check_parameters(parameters: Mapping[str, object]) -> None:
    """Refuse what would change the result, and is not there.

    Raises:
        OptionError: the request belongs to a sequence.
    """
    if parameters.get("sequence_id"):
        raise OptionError(
            "parameter sequence_id is set: models here keep no state between requests; send it without one"
        )
