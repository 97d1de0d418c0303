from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sanderling.core.errors import OptionError
from sanderling.core.precision import Precision
from sanderling.run.policy.document import (
    EmergencyRelease,
    FallbackThreshold,
    Policy,
    parse_policy,
    policy_schema,
    read_policy,
)
from tests.schema import violations

DATA = Path(__file__).parents[3] / "data"
DOCS = Path(__file__).parents[4] / "docs"


def test_articles_inference_policy_loads_as_it_is():
    policy = read_policy(DATA / "inference-policy.json")
    assert policy.device_priorities == ("npu", "gpu", "cpu")
    assert policy.threshold("npu:0") == FallbackThreshold(latency=15, temp=75)
    assert policy.threshold("npu").return_c == 65
    assert policy.threshold("cpu") == FallbackThreshold()
    assert (policy.batch_tuning.max_batch_size, policy.batch_tuning.latency_target) == (8, 16.67)


def test_articles_memory_policy_loads_as_it_is_and_without_its_section():
    policy = read_policy(DATA / "memory-policy.json")
    assert (policy.max_model_cache, policy.tensor_pool_size) == (3, 5)
    assert policy.emergency_release == EmergencyRelease(threshold=0.9, release_order=("tensorPool", "models"))
    inner = json.loads((DATA / "memory-policy.json").read_text())["memoryPolicy"]
    assert parse_policy(json.dumps(inner)) == policy


@pytest.mark.parametrize("threshold", ["0.9", "90", '"90%"', '" 90 %"'])
def test_share_is_read_as_a_fraction_or_in_percent(threshold):
    policy = parse_policy(f'{{"emergencyRelease": {{"threshold": {threshold}}}}}')
    assert policy.emergency_release.threshold == pytest.approx(0.9)


@pytest.mark.parametrize("words", [["tensor_pool", "MODEL_CACHE"], ["tensors", "models"], ["TensorPool", "Models"]])
def test_what_can_be_freed_is_read_in_the_articles_words(words):
    policy = parse_policy(json.dumps({"emergencyRelease": {"releaseOrder": words}}))
    assert policy.emergency_release.release_order == ("tensorPool", "models")


def test_case_of_precisions_does_not_matter():
    assert parse_policy('{"precisionLadder": ["FP16", "int8"]}').precision_ladder == (Precision.FP16, Precision.INT8)


def test_python_takes_its_own_names_and_the_files():
    policy = Policy(batch_tuning={"max_batch_size": 4}, device_priorities=["NPU"])
    assert policy == parse_policy('{"batchTuning": {"maxBatchSize": 4}, "devicePriorities": ["NPU"]}')


@pytest.mark.parametrize("name", ["gpu", "gpu:0"])
@pytest.mark.parametrize("device", ["gpu", "gpu:0"])
def test_threshold_of_a_kind_may_stand_beside_a_device_of_it(name, device):
    content = {"devicePriorities": [device, "cpu"], "fallbackThresholds": {name: {"temp": 80}}}
    assert parse_policy(json.dumps(content)).threshold("gpu:0").temp == 80


def test_remarks_mean_nothing():
    content = {"$schema": "policy.schema.json", "$comment": ["x"], "guard": {"$comment": {"a": 1}}}
    content["memoryPolicy"] = {"$comment": "y", "tensorPoolSize": 5}
    assert parse_policy(json.dumps(content)) == Policy()


def test_policy_that_is_written_out_reads_as_the_same():
    policy = read_policy(DATA / "inference-policy.json")
    assert parse_policy(policy.to_text()) == policy


UNKNOWN = {
    '{"batchTuning": {"maxBatchSise": 8}}': "unknown key 'batchTuning.maxBatchSise'; did you mean 'maxBatchSize'?",
    '{"batchTunning": {}}': "unknown key 'batchTunning'; did you mean 'batchTuning'?",
    '{"batch_tuning": {}}': "unknown key 'batch_tuning'; did you mean 'batchTuning'?",
    '{"batchTuning": {"max_batch_size": 8}}': (
        "unknown key 'batchTuning.max_batch_size'; did you mean 'maxBatchSize'?"
    ),
    '{"guard": {"OnTrip": "raise"}}': "unknown key 'guard.OnTrip'; did you mean 'onTrip'?",
    '{"fallbackThresholds": {"NPU": {"latancy": 8}}}': (
        "unknown key 'fallbackThresholds.NPU.latancy'; did you mean 'latency'?"
    ),
    '{"fallbackThresholds": {"NPU": {"zzz": 8}}}': (
        "unknown key 'fallbackThresholds.NPU.zzz'; known are latency, temp, cooldownTemp, sensor"
    ),
    '{"memoryPolicy": {"maxModelCash": 1}}': "unknown key 'memoryPolicy.maxModelCash'; did you mean 'maxModelCache'?",
    '{"memoryPolicy": {"guard": {}}}': (
        "unknown key 'memoryPolicy.guard'; known are maxModelCache, maxModelBytes, tensorPoolSize, emergencyRelease"
    ),
    '{"emergencyRelease": {"order": []}}': ("unknown key 'emergencyRelease.order'; known are threshold, releaseOrder"),
}
WRONG = {
    "[]": "policy must be a JSON object, got list",
    "": "policy is not valid JSON: Expecting value: line 1 column 1 (char 0)",
    '{"a": 1, "b": {"c": 1, "c": 2}}': "policy is not valid JSON: key 'c' stands twice in one object",
    '{"batchTuning": []}': "batchTuning: must be an object, got []",
    '{"guard": null}': "guard: must be an object, got null",
    '{"devicePriorities": "NPU"}': "devicePriorities: must be a list, got 'NPU'",
    '{"devicePriorities": ["NPU", "npu"]}': "devicePriorities: 'npu' stands twice",
    '{"devicePriorities": [" "]}': "devicePriorities.0: a device needs a name",
    '{"fallbackThresholds": {"NPU": {}, "npu": {}}}': ("fallbackThresholds: 'npu' stands twice; case does not matter"),
    '{"fallbackThresholds": {"NPU": null}}': "fallbackThresholds.NPU: must be an object, got null",
    '{"devicePriorities": ["cpu"], "fallbackThresholds": {"npu": {}}}': (
        "fallbackThresholds names 'npu', devicePriorities only cpu"
    ),
    '{"fallbackThresholds": {"npu": {"temp": 70, "cooldownTemp": 70}}}': (
        "fallbackThresholds.npu: cooldownTemp 70 must be below temp, which is 70"
    ),
    '{"fallbackThresholds": {"npu": {"cooldownTemp": 70}}}': "fallbackThresholds.npu: cooldownTemp needs a temp",
    '{"fallbackThresholds": {"npu": {"latency": -1}}}': (
        "fallbackThresholds.npu.latency: must be greater than 0, got -1"
    ),
    '{"batchTuning": {"maxBatchSize": "8"}}': "batchTuning.maxBatchSize: must be a valid integer, got '8'",
    '{"batchTuning": {"maxBatchSize": true}}': "batchTuning.maxBatchSize: must be a valid integer, got true",
    '{"batchTuning": {"maxBatchSize": 8.5}}': "batchTuning.maxBatchSize: must be a valid integer, got 8.5",
    '{"batchTuning": {"maxBatchSize": 0}}': ("batchTuning.maxBatchSize: must be greater than or equal to 1, got 0"),
    '{"batchTuning": {"minBatchSize": 9}}': "batchTuning: minBatchSize 9 is more than maxBatchSize 8",
    '{"batchTuning": {"latencyTarget": NaN}}': "batchTuning.latencyTarget: must be a finite number, got nan",
    '{"batchTuning": {"latencyTarget": 1e999}}': "batchTuning.latencyTarget: must be a finite number, got inf",
    '{"batchTuning": {"latencyTarget": "16"}}': "batchTuning.latencyTarget: must be a valid number, got '16'",
    '{"batchTuning": {"profiles": [4, 2, 4]}}': "batchTuning.profiles: '4' stands twice",
    '{"recovery": {"holdOff": 600000}}': "recovery: holdOff 600000 is more than longestHoldOff 300000",
    '{"deadlines": {"dropLate": 1}}': "deadlines.dropLate: must be a valid boolean, got 1",
    '{"scheduling": {"spill": "always"}}': (
        "scheduling.spill: must be 'never', 'deadline', 'balanced' or 'earliest', got 'always'"
    ),
    '{"precisionLadder": ["fp8"]}': (
        "precisionLadder.0: must be 'fp32', 'fp16', 'int8', 'int8-weights' or 'int4-weights', got 'fp8'"
    ),
    '{"guard": {"ranges": {"y": [3, 1]}}}': "guard: range of 'y' goes from 3 down to 1",
    '{"guard": {"ranges": {"y": [3]}}}': "guard.ranges.y.1: a value is missing, got [3]",
    '{"memoryPolicy": [1]}': "memoryPolicy: must be an object, got [1]",
    '{"memoryPolicy": {"maxModelCache": 1}, "maxModelCache": 2}': (
        "'maxModelCache' stands in memoryPolicy and beside it"
    ),
    '{"emergencyRelease": {"threshold": "x%"}}': "emergencyRelease.threshold: must be a valid number, got 'x%'",
    '{"emergencyRelease": {"threshold": 101}}': (
        "emergencyRelease.threshold: must be less than or equal to 1, got 101"
    ),
    '{"emergencyRelease": {"threshold": true}}': "emergencyRelease.threshold: must be a valid number, got true",
    '{"emergencyRelease": {"releaseOrder": ["models", "model_cache"]}}': (
        "emergencyRelease.releaseOrder: 'models' stands twice"
    ),
    '{"emergencyRelease": {"releaseOrder": ["caches"]}}': (
        "emergencyRelease.releaseOrder.0: must be 'tensorPool' or 'models', got 'caches'"
    ),
}


@pytest.mark.parametrize(("text", "message"), UNKNOWN.items())
def test_unknown_key_is_refused_with_what_may_have_been_meant(text, message):
    with pytest.raises(OptionError) as error:
        parse_policy(text)
    assert str(error.value) == f"policy: {message}"


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_value_that_does_not_fit_is_refused_with_its_place_and_what_fits(text, message):
    with pytest.raises(OptionError) as error:
        parse_policy(text)
    assert str(error.value).removeprefix("policy: ") == message


@pytest.mark.parametrize("depth", [100, 2_000, 200_000])
@pytest.mark.parametrize(
    "place", ["%s", '{"guard": %s}', '{"guard": {"ranges": {"y": %s}}}', '{"$comment": %s, "x": 1}']
)
def test_deep_nesting_is_one_short_line(place, depth):
    with pytest.raises(OptionError) as error:
        parse_policy(place % ("[" * depth + "]" * depth))
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("text", ['{"%s": 1}' % ("k" * 100_000), '{"isolation": "%s"}' % ("v" * 100_000)])
def test_long_key_or_value_is_cut_short(text):
    with pytest.raises(OptionError) as error:
        parse_policy(text)
    assert len(str(error.value)) < 400


def test_text_that_no_terminal_can_show_is_refused_and_can_be_printed():
    for text in (r'{"\ud800": 1}', r'{"isolation": "\ud800"}', r'{"guard": {"\ud800x": 1}}'):
        with pytest.raises(OptionError) as error:
            parse_policy(text)
        str(error.value).encode("utf-8")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b" " * (2 << 20), "is too large: at most 1048576 bytes are read"),
        ('{"isolation": "thräd"}'.encode("latin-1"), "is not UTF-8 text (byte 18)"),
    ],
)
def test_file_that_is_no_text_of_a_policy_is_refused(tmp_path, data, message):
    (tmp_path / "policy.json").write_bytes(data)
    with pytest.raises(OptionError, match=r"policy\.json") as error:
        read_policy(tmp_path / "policy.json")
    assert message in str(error.value)


def test_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"nothing\.json cannot be read: No such file"):
        read_policy(tmp_path / "nothing.json")
    with pytest.raises(OptionError, match="cannot be read: Is a directory"):
        read_policy(tmp_path)
    if Path("/dev/zero").exists():
        with pytest.raises(OptionError, match="too large"):
            read_policy("/dev/zero")


def test_policy_cannot_be_changed():
    with pytest.raises(ValidationError):
        Policy().max_model_cache = 5


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known_keys = st.sampled_from([*policy_schema()["properties"]])


@given(st.dictionaries(known_keys | st.text(max_size=6), anything, max_size=4))
def test_any_json_is_a_policy_or_one_line_that_can_be_printed(content):
    said = ""
    try:
        parse_policy(json.dumps(content))
    except OptionError as error:
        said = str(error)
    assert len(said.encode("utf-8")) < 1000


# The schema


def test_published_schema_is_that_of_the_code():
    assert json.loads((DOCS / "policy.schema.json").read_text(encoding="utf-8")) == policy_schema()


@pytest.mark.parametrize("name", ["inference-policy.json", "memory-policy.json"])
def test_schema_takes_the_articles_files(name):
    assert violations(json.loads((DATA / name).read_text()), policy_schema()) == []


def test_schema_takes_a_policy_that_is_written_out():
    assert violations(json.loads(read_policy(DATA / "inference-policy.json").to_text()), policy_schema()) == []


SAID_BY_THE_SCHEMA = ("unknown key", "must be an object", "must be a list", "must be a valid", "must be greater")


@pytest.mark.parametrize(
    "text",
    [text for text, message in (UNKNOWN | WRONG).items() if any(words in message for words in SAID_BY_THE_SCHEMA)],
)
def test_schema_refuses_what_the_reader_refuses(text):
    assert violations(json.loads(text), policy_schema()) != []


def test_every_key_of_the_schema_is_described():
    schema = policy_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, value in section["properties"].items():
            assert value.get("description") or "$ref" in value, key
