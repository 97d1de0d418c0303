import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.run.emulation.heat import Heat, HeatRule, after_power, cold, slowdown

RULE = HeatRule(tau_s=60, r_c_per_w=10, ambient_c=25, throttle_c=70, slowdown=2)


def test_a_step_of_power_shows_63_percent_after_one_time_constant():
    heat = after_power(RULE, cold(RULE), power_w=4, seconds=60)
    assert heat.temperature_c == pytest.approx(25 + 40 * (1 - math.exp(-1)))


@given(st.floats(0.01, 500), st.floats(0.01, 500), st.floats(0, 20))
def test_two_steps_are_as_exact_as_one(first, second, power_w):
    rule = RULE._replace(throttle_c=math.inf)
    halves = after_power(
        rule, after_power(rule, Heat(40.0), power_w=power_w, seconds=first), power_w=power_w, seconds=second
    )
    whole = after_power(rule, Heat(40.0), power_w=power_w, seconds=first + second)
    assert halves.temperature_c == pytest.approx(whole.temperature_c, abs=1e-9)


@given(st.floats(0, 50), st.floats(0, 1e6), st.floats(-20, 150))
def test_temperature_stays_between_where_it_was_and_where_it_goes(power_w, seconds, start_c):
    final_c = RULE.ambient_c + RULE.r_c_per_w * power_w
    heat = after_power(RULE, Heat(start_c), power_w=power_w, seconds=seconds)
    assert min(start_c, final_c) - 1e-9 <= heat.temperature_c <= max(start_c, final_c) + 1e-9


def test_a_throttled_device_is_slower_until_it_is_three_degrees_below_the_limit():
    hot = after_power(RULE, Heat(69.9), power_w=10, seconds=1)
    assert hot.throttled
    assert slowdown(RULE, hot) == 2
    a_little_cooler = after_power(RULE, Heat(70.0, throttled=True), power_w=0, seconds=1)
    assert 67 < a_little_cooler.temperature_c < 70
    assert a_little_cooler.throttled
    cool = after_power(RULE, Heat(67.1, throttled=True), power_w=0, seconds=1)
    assert not cool.throttled
    assert slowdown(RULE, cool) == 1
