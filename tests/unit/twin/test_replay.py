import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from sanderling.core.errors import OptionError
from sanderling.twin.replay import example, replay, table_of, write_page
from tests.unit.twin.cases import OVERLOAD, table


def page_of(tmp_path, policies, **options):
    result = replay(OVERLOAD, policies, table(), **options)
    path = tmp_path / "page.html"
    write_page(path, result, trace_text=OVERLOAD, command="sanderling replay <x>")
    return result, path.read_text()


class Balanced(HTMLParser):
    """Counts tags that are opened and closed."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):  # noqa: ARG002
        if tag not in {"meta"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_shows_every_policy_in_well_formed_pictures(tmp_path):
    result, page = page_of(tmp_path, ["article", "baseline:sel"], minutes=0.2)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    pictures = re.findall(r"<svg viewBox.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 2
    for picture in pictures:
        ElementTree.fromstring(picture)
    for summary in result.summaries:
        assert f"{100 * summary.whole.slo_attainment:.2f} %" in page
    assert "&lt;x&gt;" in page


def test_the_thermal_example_goes_to_the_gpu_at_75_degrees_and_back_at_65():
    found = example("thermal")
    result = replay(found.trace, [found.policy], table_of(found.table, found.thermal), minutes=6)
    first = [switch for switch in result.summaries[0].switches if switch.model == "yolov5s"][:2]
    assert [(switch.source, switch.target) for switch in first] == [("npu", "gpu"), ("gpu", "npu")]
    assert "npu is at 75.0 °C, it is left at 75 °C" in first[0].reason
    assert "it returns at 65 °C" in first[1].reason
    assert result.summaries[0].whole.slo_attainment == 1


def test_policies_are_played_on_the_same_trace():
    result = replay(OVERLOAD, ["default", "baseline:heft"], table(), minutes=0.1, seed=4)
    ours, theirs = result.summaries
    assert ours.whole.requests == theirs.whole.requests == len(result.trace)
    assert result.to_json()["policies"][0]["whole"]["requests"] == len(result.trace)


@pytest.mark.parametrize(
    ("thermal", "message"),
    [
        ("tau", "has 'tau', which is no key=value"),
        ("tau=hot", "has 'tau=hot': expected"),
        ("resistance=3", "has 'resistance=3'"),
        ("tpu:tau=3", "no device 'tpu'"),
        ("slowdown=0.5", "slowdown"),
    ],
)
def test_faulty_heat_is_one_error(thermal, message):
    with pytest.raises(OptionError, match=message):
        table_of("article", [thermal])


def test_heat_of_one_device_leaves_the_others():
    found = table_of("article", ["npu:tau=5,r=3", "ambient=40"])
    assert (found.device("npu").thermal.tau_s, found.device("npu").thermal.r_c_per_w) == (5, 3)
    assert found.device("gpu").thermal.tau_s == 110
    assert found.device("cpu").thermal.ambient_c == 40


def test_an_unknown_example_names_the_known():
    with pytest.raises(OptionError, match="unknown example 'x': available are thermal"):
        example("x")
