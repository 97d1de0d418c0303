from __future__ import annotations

import numpy as np
import pytest

from tests.arkts import run_javascript

pytestmark = pytest.mark.usefixtures("arkts")
NPU, CPU, SAFE = "mindspore/HIAI_F/int8", "mindspore/cpu/int8", "mindspore/cpu/fp32"


@pytest.fixture
def play(rawfile, tmp_path):
    """Runs a scenario of `tests/data/arkts/session.js`."""

    def played(scenario: str, **job: object):
        return run_javascript("session.js", {"rawfile": str(rawfile), **job}, tmp_path, scenario)

    return played


def golden(package, variant, call):
    return package.golden().outputs[variant]["scores"][call].ravel()


def test_accelerators_come_first_and_fp32_on_the_processor_last(play):
    assert play("lanes") == ["mindspore/OTHER/int8", NPU, "mindspore/MALI/int8", CPU, SAFE]


def test_policy_orders_devices(play):
    order = play("lanes", policy={"devicePriorities": ["gpu", "cpu"]})
    assert order == ["mindspore/MALI/int8", CPU, SAFE]


def test_precision_ladder_is_climbed_down_on_each_device(play):
    order = play("lanes", policy={"devicePriorities": ["hiai_f", "cpu"], "precisionLadder": ["fp32", "int8"]})
    assert order == ["mindspore/HIAI_F/fp32", NPU, SAFE, CPU]


def test_processor_takes_over_from_an_accelerator_that_refuses_the_model(play, package):
    told = play("accelerator_refuses")
    assert told["result"]["lane"] == CPU
    np.testing.assert_allclose(told["result"]["scores"], golden(package, "int8", 0), atol=0.05)
    assert "no operator X" in told["failed"][0]["reason"]
    assert told["switched"][0]["subject"] == f"{NPU} → {CPU}"


def test_request_that_every_lane_fails_names_them_all(play):
    told = play("nobody_can")
    assert told["kind"] == "engine"
    assert f"{CPU}: " in told["message"]
    assert f"{SAFE}: " in told["message"]


def test_accelerator_is_left_when_hot_and_used_again_when_cool(play):
    told = play("heat")
    devices = [device for _, device, _ in told["seen"]]
    assert devices == ["HIAI_F", "HIAI_F", "cpu", "cpu", "HIAI_F", "cpu", "HIAI_F"]
    assert told["seen"][2] == ["OVERHEATED", "cpu", CPU]
    assert told["reasons"][0] == "the device is OVERHEATED, HIAI_F is left from OVERHEATED on"


def test_background_work_waits_when_warm_and_all_work_stops_in_an_emergency(play):
    told = play("background_in_heat")
    assert told["urgent"]["lane"] == CPU
    assert not told["before"]
    assert told["later"]["lane"] == CPU
    assert told["refused"]["kind"] == told["stopped"]["kind"] == "hot"
    assert "EMERGENCY" in told["stopped"]["message"]


def test_requests_that_wait_run_together_and_each_gets_its_own_rows(play):
    told = play("batches", policy={"batchTuning": {"latencyTarget": 60_000, "maxBatchSize": 4}})
    assert max(told["rows"]) > 1
    assert len(told["rows"]) < len(told["calls"])
    for call, result in zip(told["calls"], told["results"], strict=True):
        np.testing.assert_allclose(result["scores"], told["alone"][call], rtol=1e-5, atol=1e-6)
    assert told["pool"] > 0


def test_batch_is_filled_up_to_a_profile(play):
    policy = {"batchTuning": {"latencyTarget": 60_000, "maxBatchSize": 4, "profiles": [1, 4]}}
    told = play("batches", policy=policy)
    assert set(told["rows"]) <= {1, 4}
    for call, result in zip(told["calls"], told["results"], strict=True):
        np.testing.assert_allclose(result["scores"], told["alone"][call], rtol=1e-5, atol=1e-6)


def test_requests_of_any_size_are_not_joined(play):
    policy = {"batchTuning": {"latencyTarget": 60_000, "maxBatchSize": 4}}
    inputs = [{"name": "image", "dtype": "float32", "shape": ["N", 3, "H", "W"]}]
    told = play("batches", policy=policy, description={"inputs": inputs})
    assert set(told["rows"]) == {1}


def test_accelerator_runs_the_rows_that_were_converted(play):
    calls = play("fixed_rows_on_accelerator", policy={"scheduling": {"spill": "never"}})
    assert calls == [{"device": "HIAI_F", "rows": 1}] * 4


def test_result_that_is_not_finite_is_computed_again_in_fp32_and_the_breaker_opens(play, package):
    told = play("guard")
    for call, result in enumerate(told["results"]):
        assert result["lane"] == SAFE
        np.testing.assert_allclose(result["scores"], golden(package, "fp32", call), rtol=1e-4, atol=1e-4)
    assert "is NaN" in told["results"][0]["tripped"]
    assert told["results"][3]["tripped"] == ""
    assert told["active"] == SAFE
    assert told["trips"] == 3
    assert told["opened"][0]["subject"] == SAFE


def test_last_good_result_is_given_again_to_its_own_stream_only(play):
    told = play("last_good", policy={"guard": {"onTrip": "last-good"}})
    assert told["again"]["stale"]
    assert told["again"]["scores"] == told["good"]["scores"]
    assert told["other"]["kind"] == "guard"


def test_result_outside_its_range_is_an_error_where_the_policy_says_so(play):
    policy = {"guard": {"onTrip": "raise", "ranges": {"scores": [-1e-6, 1e-6]}}}
    told = play("choice_of_lane", policy=policy, description={"chosen": "fp32"})
    assert told == [None, None]


def test_accelerator_that_gives_no_answer_is_left(play):
    told = play("hang", policy={"recovery": {"hangTimeout": 150}})
    assert told["result"]["lane"] == CPU
    assert told["failed"][0]["reason"] == "it gave no answer within 150 ms"


def test_system_that_is_short_of_memory_gets_models_back_step_by_step(play):
    told = play("system_is_short_of_memory")
    assert told["all"] == told["moderate"] == [CPU, SAFE]
    assert told["low"] == [CPU]
    assert told["critical"] == []
    assert told["result"]["lane"] == CPU
    assert told["told"] == ["the system's memory is LOW", "the system's memory is CRITICAL"]


def test_process_near_its_limit_releases_what_is_not_in_use(play):
    released = play("process_is_near_its_limit", policy={"sensorInterval": 1e-3})
    assert [each["subject"] for each in released] == [SAFE]
    assert released[0]["reason"] == "95 % of the memory is used, the threshold is 90 %"


def test_model_cache_keeps_its_limit(play):
    told = play("small_cache", policy={"maxModelCache": 1})
    assert [each["subject"] for each in told["released"]] == [CPU]
    assert told["released"][0]["reason"] == "least recently used"
    assert told["kept"] == ["2 models, 1 are allowed: the rest is pinned or busy"]


def test_bad_requests_are_told_what_was_expected(play):
    told = play("refusals", policy={"scheduling": {"queueLimit": 4}})
    assert told["missing"]["message"] == "input 'image' is missing: got none"
    assert told["unknown"]["message"] == "2 inputs were given: the model takes image"
    assert "the model takes float32[N,3,16,16]" in told["dtype"]["message"]
    assert "input 'image' is float32[1,3,8,8]" in told["shape"]["message"]
    assert "3068 bytes: expected 3072" in told["bytes"]["message"]
    assert told["late"]["kind"] == "deadline"
    assert told["full"]["message"] == "4 requests wait already: send fewer"
    assert f"unknown lane 'nowhere': available are {CPU}, {SAFE}" in told["lane"]["message"]
    assert told["closing"]["kind"] == told["closed"]["kind"] == "closed"


def test_requests_wait_for_room_where_the_policy_says_so(play):
    assert play("waits_for_room", policy={"scheduling": {"queueLimit": 2, "whenFull": "wait"}}) == [CPU] * 20


def test_user_chooses_a_lane_and_gives_the_choice_back(play):
    assert play("choice_of_lane") == [SAFE, CPU]


@pytest.mark.parametrize("channels_last", [[], ["image"]])
def test_self_test_tells_which_lanes_compute_something_else(play, channels_last):
    reports = play("self_test", models={"channelsLast": channels_last})
    assert [report["lane"] for report in reports] == [NPU, CPU, SAFE]
    assert [report["passed"] for report in reports] == [False, True, True]
    assert reports[0]["error"] > reports[0]["tolerance"]
    assert all(report["calls"] == 4 for report in reports)


def test_description_of_another_version_is_refused(play):
    told = play("open", description={"version": 2})
    assert told == {
        "kind": "package",
        "message": "package.json has version 2: this module reads 1; export the package again",
    }


def test_model_of_another_size_is_not_loaded(play):
    told = play("truncated", models={"sizeBytes": 17})
    assert "int8.ms has " in told["message"]
    assert "bytes: expected 17" in told["message"]


def test_package_that_no_device_takes_says_which_variants_it_has(play):
    told = play("open", models={"format": "omc"})
    assert told["kind"] == "unavailable"
    assert "no device here takes any of" in told["message"]


def test_page_shows_how_the_package_runs_and_tries_its_lanes(play):
    told = play("page")
    assert told["before"] == "loading"
    assert told["running"]["on"] == NPU
    assert told["running"]["rate"] > 0
    assert (told["running"]["memory"], told["running"]["heat"]) == ("102 MB", "COOL")
    assert told["next"] == CPU
    assert told["tests"] == ["passed"] * 3
    assert any("lane-switched" in line and "asked" in line for line in told["happenings"])
    assert not told["after"]


def test_page_without_a_package_says_why(play):
    told = play("page_without_package")
    assert told["lines"][0]["name"] == "package"
    assert "package.json cannot be read" in told["lines"][0]["value"]
    assert not told["running"]
