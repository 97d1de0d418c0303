"""Test vectors: what each decision is for given arguments, for other hosts to replay.

``python -m sanderling.run.policy.vectors`` writes ``vectors.json``; docs/policy.md has its format.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from pydantic import TypeAdapter

from sanderling.core.files import replacing
from sanderling.run.policy import NEVER, batching, breaker, latency, memory, placement, scheduling
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.breaker import BreakerRules, BreakerState
from sanderling.run.policy.latency import LatencyModel, from_table
from sanderling.run.policy.memory import Loaded, MemoryRules, Releasable
from sanderling.run.policy.placement import LaneRule, LaneState, PlacementState, RecoveryRule
from sanderling.run.policy.scheduling import SchedulingRules

VECTORS = Path(__file__).with_name("vectors.json")
VERSION = 1
_RELATIVE = 1e-9  # difference of two numbers that count as equal
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f"{module.__name__.rpartition('.')[2]}.{name}": getattr(module, name)
    for module, names in (
        (
            placement,
            "start after_call after_failure after_pardon after_temperature after_presence pin choose blocked",
        ),
        (batching, "batch_rows call_rows"),
        (latency, "observe predict_ms least_ms unsure from_density"),
        (scheduling, "urgency is_late call_limit_ms may_leave spills utilization_after capped_for_ms"),
        (memory, "release_for_limits release_in_emergency"),
        (breaker, "after_trip"),
    )
    for name in names.split()
}


class Case(NamedTuple):
    """Arguments of a function by their names, and its result, as JSON."""

    function: str
    arguments: dict[str, Any]
    result: Any


def generate() -> list[Case]:
    """All cases, the same on every machine but for the last bits of numbers."""
    makers = (_placement, _batching, _latency, _scheduling, _memory, _breaker)
    return [case for seed, maker in enumerate(makers) for case in maker(random.Random(seed))]  # noqa: S311


def replay(function: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Call a function with arguments as a case has them; returns its result as a case has it."""
    called = FUNCTIONS[function]
    kinds = get_type_hints(called)
    return to_json(called(**{name: TypeAdapter(kinds[name]).validate_python(item) for name, item in arguments.items()}))


def to_json(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Named tuples as objects, other tuples as lists, no limit as ``"Infinity"``."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        items = [to_json(item) for item in value]
        return dict(zip(fields, items, strict=True)) if fields else items
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def same(value: Any, expected: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether two results are equal, numbers to within 1e-9 of their size."""
    if isinstance(expected, dict):
        keys = isinstance(value, dict) and value.keys() == expected.keys()
        return keys and all(same(value[key], item) for key, item in expected.items())
    if isinstance(expected, list):
        lists = isinstance(value, list) and len(value) == len(expected)
        return lists and all(map(same, value, expected))
    if isinstance(expected, int | float) and not isinstance(expected, bool):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isclose(value, expected, rel_tol=_RELATIVE, abs_tol=1e-12)
    return type(value) is type(expected) and bool(value == expected)


def read() -> list[Case]:
    """The cases of ``vectors.json``."""
    content = json.loads(VECTORS.read_text(encoding="utf-8"))
    return [Case(**case) for case in content["cases"]]


def write(path: Path = VECTORS) -> None:
    """Write all cases, one a line."""
    lines = ",\n".join(json.dumps(case._asdict(), ensure_ascii=False) for case in generate())
    with replacing(path) as target:
        target.write_text(f'{{"version": {VERSION}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def _case(function: str, **arguments: Any) -> tuple[Case, Any]:  # noqa: ANN401 - any function's
    result = FUNCTIONS[function](**arguments)
    return Case(function, {name: to_json(item) for name, item in arguments.items()}, to_json(result)), result


def _only(function: str, **arguments: Any) -> Case:  # noqa: ANN401 - any function's
    return _case(function, **arguments)[0]


def _pick(source: random.Random, *values: Any) -> Any:  # noqa: ANN401 - any
    return values[int(source.random() * len(values))]


def _between(source: random.Random, low: float, high: float) -> float:
    return round(low + (high - low) * source.random(), 3)


def _placement(source: random.Random) -> Iterator[Case]:
    rules = (
        LaneRule("npu int8", "npu", 15.0, 75.0, 65.0),
        LaneRule("npu fp16", "npu", 15.0, 75.0, 65.0),
        LaneRule("gpu", "gpu", 30.0, 85.0, 75.0),
        LaneRule("cpu", "cpu"),
    )
    for walk in range(8):
        recovery = RecoveryRule(2 + walk % 2, 100.0, 500.0)
        lanes = rules[: 2 + walk % 3]
        case, state = _case("placement.start", rules=lanes)
        yield case
        now_ms = 0.0
        for _ in range(30):
            now_ms = round(now_ms + _between(source, 0.0, 60.0), 3)
            lane = int(source.random() * len(lanes))
            function, arguments = _observation(source, lanes, recovery, lane, state)
            case, (state, _) = _case(f"placement.{function}", **arguments, state=state, now_ms=now_ms)
            yield case
    yield from _placement_edges(RecoveryRule(3, 100.0, 500.0))


def _observation(
    source: random.Random, rules: tuple[LaneRule, ...], recovery: RecoveryRule, lane: int, state: PlacementState
) -> tuple[str, dict[str, Any]]:
    device = rules[lane].device
    busy = _pick(source, state.active, state.active, lane)
    kind = _pick(
        source, "call", "call", "call", "call", "failure", "heat", "heat", "presence", "pin", "choose", "pardon"
    )
    if kind == "call":
        latency_ms, other_ms = _pick(source, 15.0, 15.001, 40.0, 40.0), _pick(source, 0.0, 0.0, 0.0, 30.0, 40.0)
        call = {"lane": busy, "latency_ms": latency_ms, "other_ms": other_ms}
        return "after_call", {"rules": rules, "recovery": recovery, **call}
    if kind == "failure":
        return "after_failure", {"recovery": recovery, "lane": busy, "reason": "the engine failed"}
    if kind == "heat":
        temperature_c = _pick(source, 65.0, 65.1, 75.0, 74.9, 90.0, 40.0)
        return "after_temperature", {"rules": rules, "device": device, "temperature_c": temperature_c}
    if kind == "presence":
        return "after_presence", {"rules": rules, "device": device, "present": _pick(source, True, True, False)}
    if kind == "pin":
        return "pin", {"lane": _pick(source, -1, -1, lane), "reason": "asked"}
    return ("after_pardon", {"lanes": (busy,)}) if kind == "pardon" else ("choose", {})


def _placement_edges(recovery: RecoveryRule) -> Iterator[Case]:
    good, slow = LaneState(), LaneState(held_until_ms=50.0, strikes=1, reason="slow")
    failed, hot, gone = slow._replace(failed=True), LaneState(hot=True), LaneState(missing=True)
    for lanes in (
        (gone, failed, hot, slow),
        (gone, failed, hot),
        (gone, failed),
        (gone, gone),
        (slow, slow._replace(held_until_ms=30.0)),
        (hot, slow, good),
        (slow, good),
        (good, gone),
        (failed._replace(hot=True),),
    ):
        for pinned in (-1, len(lanes) - 1):
            for now_ms in (10.0, 30.0, 50.0):
                yield _only("placement.choose", state=PlacementState(0, lanes, pinned), now_ms=now_ms)
    for lane in (good, slow, failed, hot, gone):
        for now_ms in (49.999, 50.0):
            yield _only("placement.blocked", lane=lane, now_ms=now_ms)
    for strikes in (0, 1, 2, 3, 61, 1000):
        state = PlacementState(0, (LaneState(strikes=strikes), good))
        yield _only("placement.after_failure", recovery=recovery, state=state, lane=0, reason="failed", now_ms=7.0)


def _table(source: random.Random) -> LatencyModel:
    sizes = [size for size in (1, 2, 4, 8, 16) if source.random() < 0.6]
    return from_table(
        {size: round(_between(source, 2.0, 12.0) * size ** _between(source, 0.2, 1.1), 3) for size in sizes}
    )


def _batching(source: random.Random) -> Iterator[Case]:
    for _ in range(40):
        least = _pick(source, 1, 1, 2, 4)
        profiles = _pick(source, (), (), (1, 2, 4, 8), (4, 16), (1, 6))
        rules = BatchRules(least, least + int(source.random() * 16), _pick(source, 16.67, 40.0, 5.0), profiles)
        waiting, limit_ms = 1 + int(source.random() * 20), _pick(source, NEVER, NEVER, 0.0, -3.0, 12.0, 30.0)
        yield _only("batching.batch_rows", rules=rules, model=_table(source), waiting=waiting, limit_ms=limit_ms)
        yield _only("batching.call_rows", rules=rules, rows=waiting)
    yield _only("batching.batch_rows", rules=BatchRules(), model=LatencyModel(), waiting=8, limit_ms=NEVER)


def _latency(source: random.Random) -> Iterator[Case]:
    for _ in range(6):
        model = _table(source)
        for _ in range(6):
            rows = 1 + int(source.random() * 18)
            yield _only("latency.predict_ms", model=model, rows=rows)
            yield _only("latency.least_ms", model=model, rows=rows)
            case, model = _case("latency.observe", model=model, rows=rows, latency_ms=_between(source, 1.0, 80.0))
            yield case
        yield _only("latency.unsure", model=model)
    known = LatencyModel((1, 8), (10.0, 500.0), (1000, 1))
    yield _only("latency.observe", model=known, rows=1, latency_ms=10.0)
    for macs, weight_bytes, row_bytes in ((1e6, 1e7, 1e4), (1e10, 1e6, 1e6), (5e8, 1.1e7, 2e6), (0.0, 0.0, 0.0)):
        yield _only("latency.from_density", macs=macs, weight_bytes=weight_bytes, row_bytes=row_bytes, row_ms=8.0)


def _scheduling(source: random.Random) -> Iterator[Case]:
    for _ in range(15):
        rules = SchedulingRules(
            utilization_cap=_pick(source, 0.8, 0.5, 1.0),
            cap_applies_to=_pick(source, "background", "all"),
            time_slice_ms=_pick(source, 100.0, 5.0),
            spill=_pick(source, "never", "deadline", "balanced", "earliest"),
        )
        now_ms, priority = _between(source, 0.0, 1000.0), _pick(source, -1, 0, 2)
        due_ms = _pick(source, NEVER, round(now_ms + _between(source, -5.0, 60.0), 3))
        yield _only("scheduling.urgency", rules=rules, priority=priority, arrival_ms=now_ms, deadline_ms=due_ms)
        yield _only("scheduling.is_late", now_ms=now_ms, deadline_ms=due_ms, shortest_ms=_between(source, 0.0, 40.0))
        waits = _pick(source, True, False)
        yield _only("scheduling.call_limit_ms", rules=rules, now_ms=now_ms, deadline_ms=due_ms, others_wait=waits)
        own, other = (round(now_ms + _between(source, 0.0, 80.0), 3) for _ in range(2))
        yield _only("scheduling.spills", own_finish_ms=own, other_finish_ms=other, deadline_ms=due_ms)
        share, idle_ms = _between(source, 0.3, 1.0), _pick(source, 0.0, 50.0, 400.0)
        yield _only(
            "scheduling.utilization_after", utilization=share, idle_ms=idle_ms, busy_ms=_between(source, 0, 200)
        )
        yield _only("scheduling.capped_for_ms", rules=rules, utilization=share, idle_ms=idle_ms, priority=priority)
    for own, other, due_ms in ((9.0, 9.0, NEVER), (9.0, 8.0, 8.0), (9.0, 8.0, 7.0), (9.0, 8.0, NEVER)):
        yield _only("scheduling.spills", own_finish_ms=own, other_finish_ms=other, deadline_ms=due_ms)
    for spill in ("never", "deadline", "balanced", "earliest"):
        for share, due_ms in ((0.5, 8.0), (0.5, 9.0), (0.8, NEVER), (0.81, NEVER)):
            rules = SchedulingRules(spill=spill)
            yield _only("scheduling.may_leave", rules=rules, own_finish_ms=9.0, deadline_ms=due_ms, utilization=share)
    yield _only("scheduling.is_late", now_ms=10.0, deadline_ms=30.0, shortest_ms=20.0)
    for idle_ms in (0.0, 223.14355131420976, 223.143, 500.0):
        yield _only("scheduling.capped_for_ms", rules=SchedulingRules(), utilization=1.0, idle_ms=idle_ms, priority=-1)


def _memory(source: random.Random) -> Iterator[Case]:
    orders: tuple[tuple[Releasable, ...], ...] = (("tensorPool", "models"), ("models", "tensorPool"), ("models",), ())
    for _ in range(20):
        rules = MemoryRules(_pick(source, 1, 3, 5), _pick(source, NEVER, 500.0), 0.9, _pick(source, *orders))
        loaded = tuple(
            Loaded(
                f"m{at}",
                int(source.random() * 300),
                _pick(source, 5.0, 9.0, 2.0),
                source.random() < 0.2,
                source.random() < 0.2,
            )
            for at in range(int(source.random() * 6))
        )
        yield _only("memory.release_for_limits", rules=rules, loaded=loaded, incoming_bytes=int(source.random() * 300))
        sizes = {
            "used_bytes": _pick(source, 800, 900, 1000, 1300),
            "limit_bytes": 1000,
            "pool_bytes": _pick(source, 0, 50, 150),
        }
        yield _only("memory.release_in_emergency", rules=rules, loaded=loaded, **sizes)


def _breaker(source: random.Random) -> Iterator[Case]:
    for on_trip in ("retry-fp32", "last-good", "raise"):
        rules, state, now_ms = BreakerRules(on_trip, 3, 100.0), BreakerState(), 0.0
        for _ in range(10):
            now_ms = round(now_ms + _pick(source, 10.0, 30.0, 100.0), 3)
            known = {"has_last_good": source.random() < 0.5, "is_safe": state.is_open or source.random() < 0.2}
            case, (state, _, _) = _case("breaker.after_trip", rules=rules, state=state, now_ms=now_ms, **known)
            yield case


if __name__ == "__main__":
    write()
