from types import SimpleNamespace

import numpy as np
import pytest

from sanderling.core.progress import Recorder, Silent
from sanderling.workshop.text import rounding
from sanderling.workshop.text.decoder import Product
from sanderling.workshop.text.rounding import prepare_four_bits, round_together
from sanderling.workshop.text.storage import Form, restore, store

DEPTH = 128


def weights():
    return np.random.default_rng(0).normal(size=(DEPTH, 24)).astype(np.float32)


def inputs(seed=1):
    """Of a product, 400 tokens; neighbours are alike, and some directions are loud."""
    random = np.random.default_rng(seed)
    mixed = random.normal(size=(400, 12)) @ np.random.default_rng(2).normal(size=(12, DEPTH))
    return (mixed + 0.3 * random.normal(size=(400, DEPTH))).astype(np.float32)


def moments(values):
    return values.T @ values / len(values)


def lost(stored, values):
    return float(np.square(values @ (restore(stored, Form.BLOCKS_4) - weights())).mean())


def test_a_product_loses_less_when_its_values_make_up_for_each_other():
    rounded = round_together(weights(), moments(inputs()))

    unseen = inputs(seed=7)

    assert lost(rounded, unseen) < 0.5 * lost(store(weights(), Form.BLOCKS_4), unseen)


def test_with_inputs_that_have_nothing_in_common_each_value_is_rounded_by_itself():
    rounded, plain = round_together(weights(), np.eye(DEPTH, dtype=np.float32)), store(weights(), Form.BLOCKS_4)

    np.testing.assert_array_equal(rounded.codes, plain.codes)
    np.testing.assert_array_equal(rounded.zero_points, plain.zero_points)
    np.testing.assert_allclose(rounded.scales, plain.scales, rtol=1e-6)


def test_inputs_that_are_never_there_do_no_harm():
    values = inputs()
    values[:, :40] = 0

    assert np.isfinite(restore(round_together(weights(), moments(values)), Form.BLOCKS_4)).all()
    assert np.isfinite(restore(round_together(weights(), np.zeros((DEPTH, DEPTH), np.float32)), Form.BLOCKS_4)).all()


def test_a_weight_rounded_in_slices_is_the_weight_rounded_at_once(monkeypatch):
    whole = round_together(weights(), moments(inputs()))
    monkeypatch.setattr(rounding, "_SLICE_VALUES", DEPTH * 7)

    sliced = round_together(weights(), moments(inputs()))

    assert np.mean(sliced.codes != whole.codes) < 1e-3  # sums in another order
    assert sliced.codes.shape == whole.codes.shape


@pytest.mark.parametrize(("limit_bytes", "taken"), [(4 * (64**2 + DEPTH**2), {"a", "b"}), (4 * DEPTH**2, {"a"})])
def test_products_with_narrow_inputs_come_first_where_memory_is_short(limit_bytes, taken, monkeypatch):
    monkeypatch.setattr(rounding, "_MOMENT_BYTES", limit_bytes)
    products = [Product("b", "wide", "wb", DEPTH, 8), Product("a", "narrow", "wa", 64, 8)]

    assert {product.name for product in rounding._affordable(products)} == taken


def test_what_memory_is_too_short_for_is_told(monkeypatch):
    monkeypatch.setattr(rounding, "_MOMENT_BYTES", 0)
    recorder = Recorder(Silent())
    decoder = SimpleNamespace(products=(Product("a", "x", "w", 64, 8),))

    assert prepare_four_bits(decoder, [[1, 2, 3]], recorder) == {}
    assert [event.kind for event in recorder.events] == ["rounded-value-by-value"]
