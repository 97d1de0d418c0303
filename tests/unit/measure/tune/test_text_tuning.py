"""Which way of running a language model wins, with numbers that are made up."""

import pytest

from sanderling.core.errors import NotMetError, OptionError
from sanderling.measure.tune import text
from sanderling.measure.tune.text import list_text_candidates, tune_text
from sanderling.measure.tune.text_worker import TextRequestTimes
from sanderling.model.package import Package
from tests.alphabet_package import alphabet_package

SPEEDS = {"onnxruntime": (100.0, 5.0, 300), "genai": (90.0, 9.0, 400)}  # request, token of four at once, memory


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(text, "usable_cores", lambda: 2)
    monkeypatch.setattr(text, "text_engine_version", lambda name: {"onnxruntime": "1", "genai": "2"}.get(name, ""))


@pytest.fixture
def path(tmp_path):
    return alphabet_package(tmp_path / "alphabet.sdl").path


def measured(candidate, repeats):
    request, shared, memory = SPEEDS[candidate.engine]
    more = 1.2 if candidate.threads == 2 else 1.0
    return TextRequestTimes(
        request_ms=(request * more,) * repeats,
        first_ms=(20.0,) * repeats,
        shared_ms=(shared * more,) * repeats,
        peak_rss_bytes=memory * 10**6,
    )


@pytest.mark.parametrize(
    ("objective", "winner"),
    [("latency", "genai"), ("throughput", "onnxruntime"), ("memory", "onnxruntime")],
)
def test_the_objective_decides_who_wins(path, objective, winner):
    result = tune_text(path, objective=objective, seconds=0.1, measure=measured)

    assert result.plan.winner.name == f"{winner}/cpu/fp32/t1/b1"
    assert len(result.plan.fallbacks) == 1
    assert [one.status for one in result.candidates] == ["won", "lost", "lost", "lost"]
    assert "the least" in result.candidates[0].reason


def test_the_plan_and_the_numbers_are_kept_in_the_package(path):
    result = tune_text(path, seconds=0.1, measure=measured)
    package = Package.open(path)

    assert package.manifest.plans == {result.fingerprint: result.plan}
    assert package.tuning().results[result.fingerprint] == result
    assert result.plan.engine_versions == {"genai": "2", "onnxruntime": "1"}


def test_who_computes_something_else_is_out_with_the_reason(path):
    def measure(candidate, repeats):
        if candidate.engine == "genai":
            return TextRequestTimes(failure="relative error 1e-1 of the golden scores")
        return measured(candidate, repeats)

    result = tune_text(path, seconds=0.1, measure=measure)

    assert result.plan.winner.engine == "onnxruntime"
    assert {one.reason for one in result.candidates if one.status == "excluded"} == {
        "relative error 1e-1 of the golden scores"
    }
    assert {event.kind for event in result.events} == {"candidate-excluded"}


def test_where_nobody_is_left_all_reasons_are_told(path):
    with pytest.raises(NotMetError, match=r"genai/cpu/fp32/t2/b1: it broke"):
        tune_text(path, seconds=0.1, measure=lambda *_: TextRequestTimes(failure="it broke"))


def test_variants_outside_the_budget_and_engines_that_are_missing_take_no_part(path):
    manifest = Package.open(path).manifest
    (variant,) = manifest.variants
    others = (
        variant.model_copy(update={"id": "int4", "within_budget": False}),
        variant.model_copy(update={"id": "gguf", "engines": ("llama_cpp",)}),
    )

    candidates, excluded = list_text_candidates(manifest.model_copy(update={"variants": (variant, *others)}), ())

    assert {one.variant.id for one in candidates} == {"fp32"}
    assert [(one.name, one.reason.split(":")[0]) for one in excluded] == [
        ("int4", "the variant is outside the package's budget of perplexity"),
        ("llama_cpp/cpu/gguf", "the engine is not installed"),
    ]


def test_an_unknown_engine_and_no_time_are_refused(path):
    with pytest.raises(OptionError, match="unknown engine 'nothing': available are genai, llama_cpp"):
        tune_text(path, engines=["nothing"])
    with pytest.raises(OptionError, match="must be greater than 0"):
        tune_text(path, seconds=0)
