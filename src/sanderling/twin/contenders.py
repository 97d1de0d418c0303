"""What can be played: a policy file on the live dispatcher, or a baseline by its name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from sanderling.core.errors import OptionError
from sanderling.core.progress import Event, Progress, Silent
from sanderling.run.dispatcher import Dispatcher
from sanderling.run.emulation.table import LatencyTable
from sanderling.run.policy import NEVER
from sanderling.run.policy.document import Policy, parse_policy, read_policy
from sanderling.run.policy.rules import (
    batch_rules,
    deadline_at,
    device_order,
    lane_rule,
    recovery_rule,
    scheduling_rules,
)
from sanderling.twin.baselines import Known, baseline
from sanderling.twin.simulate import Contender

PREFIX = "baseline:"
DEFAULT, ARTICLE = "default", "article"


def contender(text: str, models: Sequence[str], table: LatencyTable, *, progress: Progress | None = None) -> Contender:
    """Make what a word stands for.

    Args:
        text: path of a policy file, ``default``, ``article``, or ``baseline:NAME[,key=value…]``.
        models: that requests will come for.
        table: with these models.
        progress: told which devices of the policy are not in the table.

    Raises:
        OptionError: an unknown baseline or model, or a policy that cannot be read.
        UnavailableError: none of the policy's devices is in the table.
    """
    if text.startswith(PREFIX):
        return _baseline(text, models, table)
    if text == DEFAULT:
        return of_policy(DEFAULT, Policy(), models, table, progress=progress)
    if text == ARTICLE:
        return of_policy(ARTICLE, article_policy(), models, table, progress=progress)
    return of_policy(Path(text).stem, read_policy(text), models, table, progress=progress)


def article_policy() -> Policy:
    """The article's policy: NPU before GPU before CPU, the NPU left at 75 °C, which returns at 65 °C."""
    text = (resources.files("sanderling.twin") / "data" / "article-policy.json").read_text("utf-8")
    return parse_policy(text, "the article's policy")


def of_policy(
    name: str, policy: Policy, models: Sequence[str], table: LatencyTable, *, progress: Progress | None = None
) -> Contender:
    """The live dispatcher with a policy."""
    dispatcher = Dispatcher(scheduling_rules(policy))
    lanes: dict[str, tuple[str, ...]] = {}
    absent: dict[str, None] = {}
    capacities = {device: table.device(device).capacity for device in table.device_kinds}
    thresholds_c: dict[str, tuple[float, float]] = {}
    for model in models:
        entries = table.model(model)
        kinds = {device: kind for device, kind in table.device_kinds.items() if device in entries}
        order = device_order(policy, kinds)
        absent |= dict.fromkeys(order.absent)
        lanes[model] = order.devices
        rules = [lane_rule(policy, device, device, kinds[device]) for device in order.devices]
        thresholds_c |= {rule.device: (rule.leave_c, rule.return_c) for rule in rules if rule.leave_c < NEVER}
        dispatcher.add_model(
            model,
            rules,
            [entries[device].latency for device in order.devices],
            batching=batch_rules(policy, _profiles(table, model)),
            recovery=recovery_rule(policy),
            capacities=capacities,
        )
    for device in absent:
        reason = f"it is in devicePriorities; the table has {', '.join(table.device_kinds)}"
        (progress or Silent()).event(Event(kind="device-missing", subject=device, reason=reason))
    default_ms = deadline_at(policy, arrival_ms=0.0, deadline_ms=None)
    return Contender(name, dispatcher, lanes, default_ms, thresholds_c)


def _profiles(table: LatencyTable, model: str) -> tuple[int, ...]:
    """Batch sizes that all devices take which take fixed sizes only; empty where any size runs."""
    fixed = [set(entry.latency_ms) for entry in table.model(model).values() if entry.fixed]
    if not fixed:
        return ()
    common = set.intersection(*fixed)
    if not common:
        raise OptionError(f"the fixed batch sizes of model '{model}' have none in common: {fixed}")
    return tuple(sorted(common))


def _baseline(text: str, models: Sequence[str], table: LatencyTable) -> Contender:
    name, *rest = text.removeprefix(PREFIX).split(",")
    options: dict[str, str] = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals:
            raise OptionError(f"'{part}' of {text} is not of the form key=value")
        options[key] = value
    devices = table.device_kinds
    entries = {model: table.model(model) for model in models}
    lanes = {model: tuple(device for device in devices if device in found) for model, found in entries.items()}
    known = Known(
        {device: table.device(device).capacity for device in devices},
        {model: {device: entries[model][device].latency for device in names} for model, names in lanes.items()},
    )
    return Contender(text.removeprefix(PREFIX), baseline(name, known, options), lanes)
