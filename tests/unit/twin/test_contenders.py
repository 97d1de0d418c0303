import pytest

from sanderling.core.errors import OptionError, UnavailableError
from sanderling.core.progress import Recorder, Silent
from sanderling.run.dispatcher import Request
from sanderling.twin.contenders import article_policy, contender
from tests.unit.twin.cases import table


def test_the_articles_policy_is_valid_and_leaves_the_npu_at_75_degrees():
    policy = article_policy()
    assert policy.device_priorities == ("npu", "gpu", "cpu")
    assert (policy.threshold("npu").temp, policy.threshold("npu").return_c) == (75, 65)


def test_a_policy_orders_the_devices_of_each_model(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('{"devicePriorities": ["cpu", "npu"], "fallbackThresholds": {"npu": {"temp": 60}}}')
    made = contender(str(path), ["a", "b"], table())
    assert made.name == "mine"
    assert made.lanes == {"a": ("cpu", "npu"), "b": ("cpu", "npu")}
    assert made.thresholds_c == {"npu": (60, 50)}


def test_a_device_that_is_not_in_the_table_is_an_event(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"devicePriorities": ["dsp", "cpu"]}')
    progress = Recorder(Silent())
    assert contender(str(path), ["a"], table(), progress=progress).lanes == {"a": ("cpu",)}
    assert [(event.kind, event.subject) for event in progress.events] == [("device-missing", "dsp")]


def test_a_policy_without_any_device_of_the_table_is_refused(tmp_path):
    path = tmp_path / "policy.json"
    path.write_text('{"devicePriorities": ["dsp"]}')
    with pytest.raises(UnavailableError, match="devicePriorities names dsp: here are only npu"):
        contender(str(path), ["a"], table())


def test_fixed_batch_sizes_of_the_table_are_the_only_ones():
    models = {"c": {"npu": {"latency_ms": {"1": 2, "4": 5}, "fixed": True}, "cpu": {"latency_ms": {"1": 9}}}}
    scheduler = contender("default", ["c"], table(models=models)).scheduler
    for _ in range(3):
        scheduler.submit(Request("c"), 0.0)
    assert scheduler.next(0.0).call_rows == 4


def test_fixed_batch_sizes_without_one_in_common_are_refused():
    models = {
        "c": {
            "npu": {"latency_ms": {"2": 2}, "fixed": True},
            "cpu": {"latency_ms": {"3": 9}, "fixed": True},
        }
    }
    with pytest.raises(OptionError, match="fixed batch sizes of model 'c' have none in common"):
        contender("default", ["c"], table(models=models))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("baseline:sel,x", "'x' of baseline:sel,x is not of the form key=value"),
        ("baseline:none", "unknown baseline 'none'"),
        ("nowhere.json", r"nowhere\.json"),
    ],
)
def test_a_faulty_word_is_one_error(text, message):
    with pytest.raises(OptionError, match=message):
        contender(text, ["a"], table())


def test_an_unknown_model_is_one_error():
    for text in ("default", "baseline:sel"):
        with pytest.raises(OptionError, match="no model 'z': it has a, b"):
            contender(text, ["z"], table())
