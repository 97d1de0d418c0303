import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.core.errors import OptionError
from sanderling.learn.sampling import epoch_order, micro_batches, padded, poisson_sample


@given(st.integers(1, 300), st.integers(0, 2**31), st.integers(0, 50))
def test_epoch_has_every_sample_once_and_comes_again(count, seed, epoch):
    order = epoch_order(count, seed=seed, epoch=epoch)

    assert sorted(order.tolist()) == list(range(count))
    assert np.array_equal(order, epoch_order(count, seed=seed, epoch=epoch))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}

    assert len(orders) == 9


@given(st.integers(1, 100), st.integers(1, 120))
def test_micro_batches_hold_the_whole_epoch(count, size):
    order = epoch_order(count, seed=0, epoch=0)

    assert np.array_equal(np.concatenate(micro_batches(order, size, is_fixed=False)), order)
    assert {len(batch) for batch in micro_batches(order, size, is_fixed=True)} <= {size}
    assert sum(map(len, micro_batches(order, size, is_fixed=True))) == count // size * size


def test_poisson_takes_each_sample_by_itself():
    chosen = [poisson_sample(2000, 0.1) for _ in range(50)]

    sizes = np.array([len(each) for each in chosen])
    assert abs(sizes.mean() - 200) < 15  # standard error 1.9
    assert 5 < sizes.std() < 30  # 13.4; a fixed size would have none
    assert all(np.all(np.diff(each) > 0) for each in chosen)
    assert len(poisson_sample(100, 1.0)) == 100


@pytest.mark.parametrize("probability", [0.0, -1.0, 1.5, float("nan")])
def test_wrong_probability_is_refused(probability):
    with pytest.raises(OptionError, match="sampling probability"):
        poisson_sample(10, probability)


@given(st.integers(0, 40), st.integers(1, 16))
def test_padding_keeps_every_index_and_masks_the_rest(count, size):
    pieces = list(padded(np.arange(count), size))

    assert all(len(indices) == len(mask) == size for indices, mask in pieces)
    kept = [index for indices, mask in pieces for index, counts in zip(indices, mask, strict=True) if counts]
    assert kept == list(range(count))
