import json

import pytest

from sanderling.core.errors import DataError, OptionError
from sanderling.run.emulation.table import LatencyTable, article_table, read_table, write_table
from sanderling.run.policy.latency import predict_ms


def table(**models):
    return {"source": "test", "models": models}


def written(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_articles_table_has_its_twelve_numbers():
    found = article_table()
    assert {
        model: [entries[device].latency_ms[1] for device in ("npu", "gpu", "cpu")]
        for model, entries in found.models.items()
    } == {
        "resnet18": [8, 15, 45],
        "yolov5s": [12, 22, 68],
        "mobilenetv3": [5, 9, 28],
        "efficientnet-lite": [18, 32, 95],
    }
    assert "not in the article" in found.source


def test_batches_of_the_articles_table_cost_in_proportion():
    assert predict_ms(article_table().model("resnet18")["npu"].latency, 4) == 32


def test_devices_and_kinds_come_from_the_models_where_the_table_names_none():
    found = LatencyTable.model_validate(
        table(m={"onnxruntime/cpu": {"latency_ms": {"1": 2}}, "gpu:0": {"latency_ms": {"1": 1}}})
    )
    assert found.device_kinds == {"onnxruntime/cpu": "cpu", "gpu:0": "gpu"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ({"source": "x", "models": {}}, "models: Dictionary should have at least 1 item"),
        (table(m={}), "model 'm' has no device"),
        (table(m={"cpu": {"latency_ms": {}}}), r"models\.m\.cpu\.latency_ms"),
        (table(m={"cpu": {"latency_ms": {"0": 1}}}), "greater than or equal to 1"),
        (table(m={"cpu": {"latency_ms": {"1": -1}}}), "greater than 0"),
        (table(m={"cpu": {"latency_ms": {"1": 1}, "jiter": 1}}), r"unknown key 'models\.m\.cpu\.jiter'"),
        (table(m={"npuu": {"latency_ms": {"1": 1}}}) | {"devices": {"npu": {}}}, "runs on 'npuu', devices are npu"),
        (table(m={"npu": {"latency_ms": {"1": 1}}}) | {"devices": {"npu": {"power_w": 1, "idle_w": 2}}}, "idle_w 2"),
    ],
)
def test_a_faulty_table_is_one_clear_error(tmp_path, content, message):
    with pytest.raises(OptionError, match=message):
        read_table(written(tmp_path, content))


def test_a_missing_table_names_the_one_that_is_built_in(tmp_path):
    with pytest.raises(DataError, match=r"No such file.*'article' is the one that is built in"):
        read_table(tmp_path / "none.json")


def test_an_unknown_model_names_those_of_the_table():
    with pytest.raises(OptionError, match="no model 'resnet': it has resnet18, yolov5s"):
        article_table().model("resnet")


def test_writing_twice_keeps_what_only_the_first_had(tmp_path):
    path = tmp_path / "table.json"
    write_table(path, LatencyTable.model_validate(table(a={"cpu": {"latency_ms": {"1": 1}}})))
    more = LatencyTable.model_validate(
        table(a={"gpu": {"latency_ms": {"1": 3}}}, b={"cpu": {"latency_ms": {"1": 2, "4": 6}}}) | {"source": "more"}
    )
    assert write_table(path, more) == read_table(path)
    found = read_table(path)
    assert set(found.models["a"]) == {"cpu", "gpu"}
    assert found.models["b"]["cpu"].latency_ms == {1: 2, 4: 6}
    assert found.source == "test; more"


def test_other_heat_reaches_one_device_or_all():
    found = article_table().with_thermal({"tau_s": 5.0}, "npu").with_thermal({"ambient_c": 40.0})
    assert found.device("npu").thermal.tau_s == 5
    assert found.device("gpu").thermal.tau_s == 110
    assert found.device("gpu").thermal.ambient_c == 40
    with pytest.raises(OptionError, match="no device 'tpu': it has npu, gpu, cpu"):
        found.with_thermal({"tau_s": 5.0}, "tpu")
    with pytest.raises(OptionError, match="heat of device 'npu': tau_s"):
        found.with_thermal({"tau_s": -1.0}, "npu")
