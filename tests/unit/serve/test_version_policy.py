from __future__ import annotations

import pytest

from sanderling.core.errors import OptionError
from sanderling.serve.version_policy import VersionPolicy, parse_version_policy


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("latest", (7,)), ("latest=2", (4, 7)), ("latest=9", (2, 4, 7)), ("all", (2, 4, 7)), ("specific=4,2,5", (2, 4))],
)
def test_policy_chooses_versions_the_newest_last(text, wanted):
    assert parse_version_policy(text).wanted({7, 2, 4}) == wanted


def test_nothing_is_wanted_where_nothing_is_there():
    assert VersionPolicy().wanted(()) == ()


@pytest.mark.parametrize("text", ["", "newest", "latest=0", "latest=-1", "specific=", "specific=1,,2", "all=3"])
def test_other_forms_are_refused_with_those_that_there_are(text):
    with pytest.raises(OptionError, match=r"expected latest, latest=N, specific=N,N,… or all"):
        parse_version_policy(text)
