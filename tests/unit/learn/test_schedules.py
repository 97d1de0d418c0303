import itertools
import math

import pytest

from sanderling.core.errors import OptionError
from sanderling.learn.schedules import Schedule, parse_numbers, parse_schedule


def test_constant_rate_stays():
    assert [Schedule().rate(0.1, update) for update in (0, 5, 1000)] == [0.1, 0.1, 0.1]


def test_cosine_falls_from_the_peak_to_its_floor():
    schedule = parse_schedule("cosine:steps=10,floor=0.1")

    rates = [schedule.rate(2.0, update) for update in range(12)]

    assert rates[0] == 2.0
    assert rates[5] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rates[10] == rates[11] == pytest.approx(0.2)
    assert all(before > after for before, after in itertools.pairwise(rates[:11]))


def test_warm_up_rises_in_equal_steps_to_the_peak():
    schedule = parse_schedule("constant:warmup=4")

    assert [schedule.rate(1.0, update) for update in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_step_multiplies_after_each_interval():
    schedule = parse_schedule("step:every=3,factor=0.5")

    assert [schedule.rate(8.0, update) for update in range(7)] == [8, 8, 8, 4, 4, 4, 2]


def test_open_length_is_filled_in_and_a_given_one_stays():
    assert parse_schedule("cosine").with_steps(40).steps == 40
    assert parse_schedule("cosine:steps=7").with_steps(40).steps == 7


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("linear", "expected constant, cosine, step"),
        ("cosine:every=3", "'every=3' is unknown; expected warmup=…, steps=…, floor=…"),
        ("cosine:warmup=1,warmup=2", "stands twice"),
        ("cosine:warmup=1.5", "warmup must be a whole number"),
        ("step:every=0", "every must be a whole number"),
        ("cosine:floor=2", "floor must be in [0, 1]"),
        ("step:factor=0", "factor in (0, 1]"),
        ("cosine:steps=nan", "expected a number"),
    ],
)
def test_wrong_schedule_is_refused(text, says):
    with pytest.raises(OptionError) as refused:
        parse_schedule(text)
    assert says in str(refused.value)


def test_numbers_are_read_with_their_names():
    assert parse_numbers(" a = 1 , b=2e-3,", "x", ("a", "b")) == {"a": 1.0, "b": 2e-3}
    assert parse_numbers("", "x", ("a",)) == {}
    assert math.isfinite(parse_numbers("a=1e300", "x", ("a",))["a"])
