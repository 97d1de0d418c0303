from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.policy.memory import (
    NOTHING,
    Loaded,
    MemoryRules,
    release_for_limits,
    release_in_emergency,
)

A, B, C = Loaded("a", 100, 1.0), Loaded("b", 50, 2.0), Loaded("c", 25, 3.0)
GIB = 1 << 30
sets = st.lists(
    st.builds(Loaded, st.just(""), st.integers(0, 1000), st.floats(0, 100), st.booleans(), st.booleans()), max_size=8
).map(lambda models: tuple(model._replace(name=str(at)) for at, model in enumerate(models)))


def emergency(rules=MemoryRules(), loaded=(A, B, C), used=950, limit=1000, pool=0):  # noqa: B008 - a value
    return release_in_emergency(rules, loaded, used_bytes=used, limit_bytes=limit, pool_bytes=pool)


def test_nothing_is_released_within_the_limits():
    assert release_for_limits(MemoryRules(), (A, B)) == NOTHING
    assert release_for_limits(MemoryRules(max_bytes=200.0), (A, B), incoming_bytes=50) == NOTHING


def test_least_recently_used_model_goes_first():
    assert release_for_limits(MemoryRules(), (C, A, B)).models == ("a",)
    assert release_for_limits(MemoryRules(max_models=1), (C, A, B)).models == ("a", "b", "c")


def test_byte_budget_releases_as_many_as_it_takes():
    release = release_for_limits(MemoryRules(max_models=9, max_bytes=135.0), (A, B, C), incoming_bytes=60)
    assert release == (False, ("a",), "least recently used")


def test_pinned_and_busy_models_stay_and_the_reason_says_that_the_limit_is_not_kept():
    loaded = (A._replace(pinned=True), B._replace(busy=True), C)
    release = release_for_limits(MemoryRules(max_models=2), loaded)
    assert release.models == ("c",)
    assert release.reason == "3 models, 2 are allowed: the rest is pinned or busy"


def test_model_that_exceeds_the_budget_by_itself_is_told():
    release = release_for_limits(MemoryRules(max_bytes=10.0), (A,), incoming_bytes=20)
    assert release == (False, ("a",), "20 bytes, 10 are allowed: no other is left")


def test_emergency_begins_at_the_threshold():
    assert emergency(used=899) == NOTHING
    assert emergency(used=900).models == ("a",)


def test_emergency_releases_the_pool_first_and_models_only_if_that_is_not_enough():
    assert emergency(used=950, pool=60) == (True, (), "95 % of the memory is used, the threshold is 90 %")
    assert emergency(used=950, pool=40)[:2] == (True, ("a",))
    assert emergency(used=1100, pool=10)[:2] == (True, ("a", "b", "c"))


def test_emergency_follows_the_policys_order():
    models_first = MemoryRules(release_order=("models", "tensorPool"))
    assert emergency(models_first, used=950, pool=60)[:2] == (False, ("a",))
    assert emergency(models_first, used=1090, pool=60)[:2] == (True, ("a", "b", "c"))
    assert emergency(MemoryRules(release_order=("tensorPool",)), used=1090)[:2] == (False, ())


def test_emergency_spares_pinned_and_busy_models():
    assert emergency(loaded=(A._replace(busy=True), B._replace(pinned=True), C)).models == ("c",)


@given(sets, st.integers(1, 6), st.integers(0, 3000), st.integers(0, 500))
def test_limits_hold_afterwards_or_the_reason_says_so(loaded, max_models, max_bytes, incoming_bytes):
    rules = MemoryRules(max_models, float(max_bytes))
    release = release_for_limits(rules, loaded, incoming_bytes=incoming_bytes)
    by_name = {model.name: model for model in loaded}
    gone = [by_name[name] for name in release.models]
    kept = [model for model in loaded if model.name not in release.models]
    free = [model for model in kept if not model.pinned and not model.busy]
    assert not any(model.pinned or model.busy for model in gone)
    assert all(model.used_ms <= other.used_ms for model in gone for other in free)
    held = len(kept) + 1 <= max_models and sum(model.size_bytes for model in kept) + incoming_bytes <= max_bytes
    assert held or (not free and "allowed" in release.reason)
    assert (release == NOTHING) == (held and not gone)


@given(sets, st.integers(0, 8000), st.integers(0, 2000), st.permutations(["tensorPool", "models"]))
def test_emergency_frees_no_more_than_it_must(loaded, used, pool, order):
    release = emergency(MemoryRules(release_order=tuple(order)), loaded, used=used, limit=4000, pool=pool)
    sizes = {model.name: model.size_bytes for model in loaded}
    steps = [sizes[name] for name in release.models]
    steps = [*steps, pool] if order[0] == "models" and release.tensor_pool else steps
    steps = [pool, *steps] if order[0] == "tensorPool" and release.tensor_pool else steps
    if steps:
        assert used - sum(steps[:-1]) >= 0.9 * 4000
    assert (release == NOTHING) == (used < 0.9 * 4000)


@pytest.mark.parametrize("used", [GIB, 2 * GIB])
def test_emergency_without_anything_to_free_still_says_why(used):
    assert release_in_emergency(MemoryRules(), (), used_bytes=used, limit_bytes=GIB, pool_bytes=0).reason
