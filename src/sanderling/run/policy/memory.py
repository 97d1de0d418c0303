"""What is freed: the least recently used models over a limit, and more when memory runs out."""

from __future__ import annotations

from typing import Literal, NamedTuple

from sanderling.run.policy import NEVER

Releasable = Literal["tensorPool", "models"]


class MemoryRules(NamedTuple):
    """The policy's numbers."""

    max_models: int = 3
    max_bytes: float = NEVER
    threshold: float = 0.9
    release_order: tuple[Releasable, ...] = ("tensorPool", "models")


class Loaded(NamedTuple):
    """A model that a pool holds; ``busy`` while requests of it wait or run."""

    name: str
    size_bytes: int
    used_ms: float
    pinned: bool = False
    busy: bool = False


class Release(NamedTuple):
    """What to free now, in this order, and why; ``models`` may be empty."""

    tensor_pool: bool
    models: tuple[str, ...]
    reason: str


NOTHING = Release(False, (), "")
LEAST_USED = "least recently used"


def release_for_limits(rules: MemoryRules, loaded: tuple[Loaded, ...], *, incoming_bytes: int = 0) -> Release:
    """Models to unload so that one more of ``incoming_bytes`` keeps the limits, the least recently used first.

    Pinned and busy models stay: where the limits cannot be kept, ``reason`` says so.
    """
    count, size = len(loaded) + 1, sum(model.size_bytes for model in loaded) + incoming_bytes
    freed: list[str] = []
    for model in _oldest_first(loaded):
        if count <= rules.max_models and size <= rules.max_bytes:
            break
        freed.append(model.name)
        count, size = count - 1, size - model.size_bytes
    if not freed and count <= rules.max_models and size <= rules.max_bytes:
        return NOTHING
    over = []
    if count > rules.max_models:
        over.append(f"{count} models, {rules.max_models} are allowed")
    if size > rules.max_bytes:
        over.append(f"{size} bytes, {rules.max_bytes:.0f} are allowed")
    stays = "the rest is pinned or busy" if len(freed) < len(loaded) else "no other is left"
    return Release(False, tuple(freed), f"{' and '.join(over)}: {stays}" if over else LEAST_USED)


def release_in_emergency(
    rules: MemoryRules, loaded: tuple[Loaded, ...], *, used_bytes: int, limit_bytes: int, pool_bytes: int
) -> Release:
    """What to free when memory reaches the threshold, in the policy's order, until the sizes suffice on paper."""
    excess = used_bytes - rules.threshold * limit_bytes
    if excess < 0:
        return NOTHING
    tensor_pool, models = False, []
    for kind in rules.release_order:
        if kind == "tensorPool" and pool_bytes:
            tensor_pool, excess = True, excess - pool_bytes
        elif kind == "models":
            for model in _oldest_first(loaded):
                if excess < 0:
                    break
                models.append(model.name)
                excess -= model.size_bytes
        if excess < 0:
            break
    share = (
        f"{100 * used_bytes / limit_bytes:.0f} % of the memory is used, the threshold is {100 * rules.threshold:.0f} %"
    )
    return Release(tensor_pool, tuple(models), share)


def _oldest_first(loaded: tuple[Loaded, ...]) -> list[Loaded]:
    free = [model for model in loaded if not model.pinned and not model.busy]
    return sorted(free, key=lambda model: (model.used_ms, model.name))
