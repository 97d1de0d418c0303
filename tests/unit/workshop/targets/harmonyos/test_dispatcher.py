from __future__ import annotations

import json
import random

import pytest

from sanderling.run.dispatcher import Dispatcher, Request
from sanderling.run.policy import NEVER
from sanderling.run.policy.batching import BatchRules
from sanderling.run.policy.latency import LatencyModel
from sanderling.run.policy.placement import LaneRule, RecoveryRule
from sanderling.run.policy.scheduling import SchedulingRules
from tests.arkts import replay_trace

LEVELS = {"leave": "OVERHEATED", "return": "WARM"}
LANES = (LaneRule("a", "npu", 15.0, 4.0, 2.0), LaneRule("b", "gpu", 30.0, 4.0, 2.0), LaneRule("c", "cpu"))
BATCHING = {"main": BatchRules(1, 8, 40.0), "other": BatchRules(1, 4, 16.67, (1, 2, 4))}
RECOVERY = RecoveryRule(2, 40.0, 200.0)


class Traced:
    """Drives Python's dispatcher at random, and keeps each step with what it gave."""

    def __init__(self, seed: int, spill: str) -> None:
        self.source = random.Random(seed)
        self.rules = SchedulingRules(spill=spill, queue_limit=24, patience_ms=100.0)
        self.dispatcher = Dispatcher(self.rules)
        for name, batching in BATCHING.items():
            self.dispatcher.add_model(name, LANES, [LatencyModel()] * len(LANES), batching=batching, recovery=RECOVERY)
        self.now_ms = 0.0
        self.requests: list[Request] = []
        self.running: dict[int, object] = {}
        self.dispatches: list[object] = []
        self.steps: list[list[object]] = []
        self.answers: list[list[object]] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms = round(self.now_ms + self.source.random() * 6, 3)
            kind = self.source.choices(("submit", "end", "level", "presence", "pin", "cancel"), (60, 60, 3, 3, 2, 4))[0]
            getattr(self, f"_{kind}")()
            while self._next():
                pass

    def _note(self, operation: str, arguments: list[object], given: object) -> None:
        ids = {id(request): index for index, request in enumerate(self.requests)}
        dropped = [ids[id(request)] for request in self.dispatcher.dropped]
        self.dispatcher.dropped.clear()
        self.dispatcher.switches.clear()
        self.steps.append([operation, self.now_ms, *arguments])
        self.answers.append([given, dropped, [self.dispatcher.placement(name).active for name in BATCHING]])

    def _submit(self) -> None:
        model, rows = self.source.choice(["main", "main", "other"]), self.source.choice([1, 1, 1, 2, 3])
        deadline_ms = self.source.choice([NEVER, NEVER, round(self.now_ms + self.source.random() * 90, 3)])
        priority = self.source.choice([0, 0, 0, 1, -1])
        request = Request(model, rows=rows, deadline_ms=deadline_ms, priority=priority)
        self.requests.append(request)
        refusal = self.dispatcher.submit(request, self.now_ms)
        limit = "Infinity" if deadline_ms == NEVER else deadline_ms
        self._note("submit", [model, rows, limit, priority], refusal or "")

    def _next(self) -> bool:
        made = self.dispatcher.next(self.now_ms)
        if made is None:
            self._note("next", [], None)
            return False
        self.running[len(self.dispatches)] = made
        self.dispatches.append(made)
        ids = [self.requests.index(request) for request in made.requests]
        self._note("next", [], [made.model, made.lane, made.device, made.rows, made.call_rows, ids])
        return True

    def _end(self) -> None:
        if not self.running:
            return
        index = self.source.choice(sorted(self.running))
        made = self.running.pop(index)
        if self.source.random() < 0.12:
            hung = self.source.random() < 0.3
            lost = self.dispatcher.fail(made, "failed", self.now_ms, hung=hung)
            self._note("fail", [index, hung], [self.requests.index(request) for request in lost])
        else:
            learn = self.source.random() < 0.9
            self.dispatcher.complete(made, self.now_ms, learn=learn)
            self._note("complete", [index, learn], None)

    def _level(self) -> None:
        level = self.source.choice([0, 1, 2, 3, 4, 5])
        for device in ("npu", "gpu", "cpu"):
            self.dispatcher.sense(device, float(level), self.now_ms)
        self._note("level", [level], None)

    def _presence(self) -> None:
        device, present = self.source.choice(["npu", "gpu"]), self.source.random() < 0.7
        self.dispatcher.presence(device, present=present, now_ms=self.now_ms)
        self._note("presence", [device, present], None)

    def _pin(self) -> None:
        model, lane = self.source.choice(list(BATCHING)), self.source.choice([-1, -1, 0, 2])
        self.dispatcher.switch(model, lane, self.now_ms, "asked")
        self._note("pin", [model, lane], None)

    def _cancel(self) -> None:
        if self.requests:
            index = self.source.randrange(len(self.requests))
            self._note("cancel", [index], self.dispatcher.cancel(self.requests[index]))


@pytest.mark.parametrize("spill", ["never", "deadline", "balanced", "earliest"])
@pytest.mark.parametrize("seed", [1, 2])
def test_module_dispatches_what_python_does(seed, spill, tmp_path):
    traced = Traced(seed, spill)
    traced.run(600)
    batches = [given for (given, *_), step in zip(traced.answers, traced.steps, strict=True) if step[0] == "next"]
    assert max(len(given[5]) for given in batches if given) > 1
    assert len({given[1] for given in batches if given}) == len(LANES)
    answers = replay_trace(traced.steps, traced.rules, BATCHING, LANES, RECOVERY, LEVELS, tmp_path)
    for step, expected, got in zip(traced.steps, traced.answers, answers, strict=True):
        assert got == json.loads(json.dumps(expected)), step
