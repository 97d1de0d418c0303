from __future__ import annotations

import pytest

from sanderling.core.errors import OptionError
from sanderling.serve.parameters import check_parameters, read_deadline_ms, read_priority


def test_timeout_is_in_microseconds_and_the_shorter_deadline_counts():
    assert read_deadline_ms({}) is None
    assert read_deadline_ms({"timeout": 0}) is None
    assert read_deadline_ms({"timeout": 2500}) == 2.5
    assert read_deadline_ms({"timeout": 2500}, 1.0) == 1.0
    assert read_deadline_ms({"timeout": 2500}, 9.0) == 2.5
    assert read_deadline_ms({}, 9.0) == 9.0


@pytest.mark.parametrize("timeout", [-1, 1.5, "5", True, None])
def test_timeout_of_another_kind_is_refused(timeout):
    with pytest.raises(OptionError, match="whole number of microseconds"):
        read_deadline_ms({"timeout": timeout})


def test_priority_one_is_before_the_default_and_others_behind():
    priorities = [read_priority({"priority": level}) for level in (1, 2, 5, 6, 1 << 60)]
    assert priorities == sorted(priorities, reverse=True)
    assert read_priority({}) == read_priority({"priority": 0}) == read_priority({"priority": 5}) == 0
    assert read_priority({"priority": 6}) < 0


@pytest.mark.parametrize("level", [-1, 1.0, "1", False])
def test_priority_of_another_kind_is_refused(level):
    with pytest.raises(OptionError, match="whole number ≥ 0"):
        read_priority({"priority": level})


def test_request_of_a_sequence_is_refused_and_a_clients_own_parameters_are_not():
    check_parameters({"camera": "left", "sequence_id": 0})
    for identifier in (5, "a"):
        with pytest.raises(OptionError, match="keep no state between requests"):
            check_parameters({"sequence_id": identifier})
