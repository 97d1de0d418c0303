"""`sanderling replay`, and the latency tables that `sanderling bench --table` writes for it."""

import json

import pytest

from sanderling.run.emulation.table import read_table

TRACE = "camera:yolov5s@30fps,deadline=50+poisson:resnet18@80/s,deadline=40"


def test_policies_are_compared_on_one_trace(sanderling_here, out):
    done = sanderling_here(
        "replay", TRACE, "--compare", "baseline:least-slack", "--minutes", "0.3", "--out", out / "page.html", "--json"
    )
    assert done.code == 0, done.stderr
    ours, theirs = done.answer["policies"]
    assert (ours["name"], theirs["name"]) == ("default", "least-slack")
    assert ours["whole"]["requests"] == theirs["whole"]["requests"] == done.answer["requests"] > 1000
    assert ours["whole"]["slo_attainment"] > 0.9
    page = (out / "page.html").read_text()
    assert page.count("<svg viewBox") == 2
    assert "sanderling replay camera:yolov5s@30fps" in page


def test_the_thermal_example_is_told_to_people(sanderling_here):
    done = sanderling_here("replay", "--example", "thermal", "--minutes", "6")
    assert done.code == 0, done.stderr
    assert "yolov5s npu → gpu, npu is at 75.0 °C, it is left at 75 °C" in done.stdout
    assert "yolov5s gpu → npu, npu has cooled to 64.9 °C, it returns at 65 °C" in done.stdout


def test_a_recorded_trace_runs_through_a_policy_file(sanderling_here, work):
    (work / "trace.csv").write_text("time_ms,model,deadline_ms,priority,rows\n0,resnet18,50,,\n5,resnet18,1,1,1\n")
    (work / "policy.json").write_text('{"devicePriorities": ["CPU"]}')
    done = sanderling_here("replay", "trace.csv", "--policy", "policy.json", "--json")
    whole = done.answer["policies"][0]["whole"]
    assert (whole["requests"], whole["in_time"], whole["dropped"]) == (2, 1, 1)
    assert whole["latency_ms"]["p50"] == 45


def test_the_same_seed_gives_the_same_answer(sanderling_here):
    first, second = (sanderling_here("replay", TRACE, "--minutes", "0.2", "--seed", "7", "--json") for _ in range(2))
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no TRACE was given"),
        (("poisson:resnet@4/s",), "the latency table has no model 'resnet': it has resnet18"),
        (("poisson:resnet18@4",), "rate '4' is not of the form 40/s"),
        (("missing.csv",), "cannot read trace missing.csv: No such file"),
        ((TRACE, "--policy", "missing.json"), "missing.json"),
        ((TRACE, "--policy", "baseline:magic"), "unknown baseline 'magic': available are fixed"),
        ((TRACE, "--table", "missing.json"), "cannot read latency table missing.json"),
        ((TRACE, "--thermal", "npu:tau=0"), "heat of device 'npu'"),
        ((TRACE, "--minutes", "0"), "0 minutes cannot be played"),
        ((TRACE, "--out", "page.pdf"), "must end in .html"),
        (("--example", "cold"), "unknown example 'cold'"),
    ],
)
def test_bad_input_is_one_clear_error(refused_here, arguments, says):
    refused_here("replay", *arguments, says=says)


def test_a_page_that_cannot_be_written_leaves_nothing(refused_here, work):
    refused_here("replay", TRACE, "--minutes", "0.02", "--out", work / "no" / "page.html", says="cannot write")


def test_bench_writes_a_table_that_replay_takes(sanderling_here, package, work):
    done = sanderling_here(
        "bench", package, "--repeats", "3", "--variant", "fp32", "--batches", "1,4", "--table", "table.json", "--json"
    )
    assert done.code == 0, done.stderr
    table = read_table(work / "table.json")
    (name,) = table.models
    assert set(table.models[name]["cpu"].latency_ms) == {1, 4}
    assert done.answer["table"] == json.loads((work / "table.json").read_text())
    replayed = sanderling_here("replay", f"poisson:{name}@20/s", "--table", "table.json", "--minutes", "0.1", "--json")
    assert replayed.answer["policies"][0]["devices"]["cpu"]["requests"] > 50


def test_a_file_that_is_no_table_is_refused_before_anything_is_measured(refused_here, package, work):
    (work / "table.json").write_text('{"source": 1}')
    refused_here("bench", package, "--repeats", "3", "--table", "table.json", says="latency table table.json")


def test_faulty_batches_are_refused(refused_here, package):
    refused_here("bench", package, "--repeats", "3", "--batches", "1,zero", says="are not of the form 1,2,4,8")
