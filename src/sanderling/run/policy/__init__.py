"""Decisions as pure functions: numbers in, a decision out; no clock, no thread, no array.

The live runtime, the twin and other hosts run the same decisions. `vectors.json` holds (state, observation → decision)
triples that each host replays.
"""

from __future__ import annotations

NEVER = float("inf")  # milliseconds, or a limit, where there is none
