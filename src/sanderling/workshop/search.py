"""Find the fewest blocks to put back to float that keep a budget, without fooling oneself by looking often.

A search that tries many forms on one evaluation set and takes what passes is fooled by luck. Here the calibration data
says where to look; the evaluation data is then asked in an order that is fixed beforehand, safest first, and the first
form that fails ends it. So the chance of accepting any form that misses the budget is no larger than that of one test.

Source: fixed sequence testing; Angelopoulos et al., "Learn then Test" (2021), section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

CONFIDENCE = 0.975  # of the bound on all INT8, and of those in the search: both together fool 1 time in 20 at most
MOST_ROUGH = 5
MOST_TESTS = 7
_MARGIN = 0.15  # of all forms: calibration data is another sample than evaluation data


def rough_boundary(length: int, good: Callable[[int], bool], *, most: int = MOST_ROUGH) -> int:
    """Halve the way from the least safe form, 0, to the safest, ``length - 1``, and return the first good one.

    Args:
        length: number of forms, at least 1; the last is taken to be good.
        good: whether a form looks good on data that is not used for the decision.
        most: calls of ``good``; what is left undecided counts as not good.
    """
    low, high = 0, length - 1  # everything from high on is good
    for _ in range(most):
        if low >= high:
            break
        middle = (low + high) // 2
        if good(middle):
            high = middle
        else:
            low = middle + 1
    return high


def order_of_tests(boundary: int, length: int, *, most: int) -> list[int]:
    """Forms to test, safest first: from a little beyond the boundary down to the least safe, evenly spread.

    Args:
        boundary: where forms begin to look good.
        length: number of forms; form 0 was tested before, and the last one is float as a whole.
        most: tests.
    """
    safest = min(boundary + max(1, round(length * _MARGIN)), length - 2)
    if safest < 1:
        return []
    places = np.linspace(safest, 1, min(most, safest)).round().astype(int)
    return [int(place) for place in dict.fromkeys(places.tolist())]


def last_that_holds(order: Sequence[int], holds: Callable[[int], bool]) -> int | None:
    """Test forms in their order until one fails; the last that held, or None."""
    held = None
    for index in order:
        if not holds(index):
            break
        held = index
    return held
