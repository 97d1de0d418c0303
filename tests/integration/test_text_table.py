"""The page of the language models' benchmark says what its numbers say."""

import pytest

from benchmarks.text import calls_table
from benchmarks.text.table import render
from sanderling.core.machine import describe_machine


def changed(percent):
    return {"tokens": 639, "value": 25.0, "percent": percent, "percent_upper": percent + 1}


def contender(*, prefill, decode, percent, memory):
    return {
        "prefill_tokens_per_s": prefill,
        "decode_tokens_per_s": decode,
        "decode_long_tokens_per_s": decode / 2,
        "ttft_ms": 40.0,
        "perplexity": {"prose": changed(percent), "code": changed(percent)},
        "overall": changed(percent),
        "size_bytes": 100e6,
        "peak_rss_bytes": memory,
    }


def results():
    return {
        "command": "python -m benchmarks.text.run",
        "machine": {
            "processor": "A",
            "cores": 2,
            "cpu_features": [],
            "memory_bytes": 8 << 30,
            "system": "Linux",
            "python": "3.11",
            "versions": {},
            "architecture": "x86_64",
        },
        "peer": "llama-cpp-python 1",
        "source": "M.gguf",
        "rounds": 7,
        "scored_tokens": 640,
        "contenders": {
            "fp32": contender(prefill=500, decode=50, percent=0, memory=600e6),
            "int8": contender(prefill=1500, decode=150, percent=3, memory=300e6),
            "llama.cpp Q8_0": contender(prefill=500, decode=100, percent=1, memory=240e6),
            "llama.cpp Q4_0": contender(prefill=600, decode=120, percent=18, memory=250e6),
        },
    }


@pytest.fixture
def page():
    return render(results())


def test_ratios_are_ours_over_the_peers(page):
    assert "| llama.cpp Q8_0 | +1.00 % | 3.00× | 1.50× | 1.50× | 1.00× | 1.25× |" in page


def test_a_peer_beyond_the_budget_is_marked(page):
    assert "| llama.cpp Q4_0 (beyond 5 %) | +18.00 % | 2.50× |" in page


def test_changes_are_told_by_text_with_their_bound(page):
    assert "| +3.00 % | +3.00 % | +4.00 % |" in page


def test_the_large_model_is_told_with_its_ratios():
    speeds = {"prefill_tokens_per_s": 60.0, "decode_tokens_per_s": 12.0, "decode_long_tokens_per_s": 10.0}
    peer = {name: value / 1.5 for name, value in speeds.items()}
    rows = {"int4": {**speeds, "peak_rss_bytes": 900e6}, "llama.cpp Q4_0": {**peer, "peak_rss_bytes": 1000e6}}

    page = render(results(), large={"command": "c", "rounds": 2, "contenders": rows})

    assert "| ratio | 0.90× | 1.50× | 1.50× | 1.50× |" in page


def test_memory_is_told_by_setting_and_a_setting_that_failed_says_why():
    sizes = {"resident": 80e6, "private": 150e6, "mapped": 60e6, "peak": 250e6}
    stages = dict.fromkeys(("started", "loaded", "read", "written"), sizes)
    seconds = {f"{name}_{kind}": 0.5 for name in ("prefill", "decode", "decode_long") for kind in ("used", "passed")}
    settings = {"as shipped": {"memory": stages, "seconds": seconds}, "odd": {"failed": "unknown option"}}
    told = {"command": "c", "variant": "int8", "size_bytes": 1e8, "rounds": 2, "prompt_tokens": 512, "steps": 16}

    page = render(results(), memory={**told, "settings": settings})

    assert "| as shipped | 80 MB | 250 MB | 150 MB | 60 MB | 1024 | 32 | 32 | 32 |" in page
    assert "| odd | unknown option |" in page


def test_the_page_of_calls_tells_how_much_guesses_shared_calls_and_kept_beginnings_give():
    draft = {"tokens_per_s": 50.0, "same_answers": 6, "answers": 6, "guessed": 0, "right": 0}
    results = {
        "command": "python -m benchmarks.text.calls",
        "machine": describe_machine().model_dump(),
        "package": "model.gguf",
        "rounds": 2,
        "answer_tokens": 96,
        "prompt_tokens": 512,
        "question_tokens": 16,
        "variants": {
            "int8": {
                "prefix": {"whole_ms": 600.0, "cached_ms": 60.0},
                "drafts": {"0": draft, "7": {**draft, "tokens_per_s": 155.0, "guessed": 90, "right": 80}},
                "together": {"4": {"together_tokens_per_s": 200.0, "apart_tokens_per_s": 50.0}},
            }
        },
    }
    shown = calls_table.render(results)

    assert "| int8 | 7 | 155 | 3.10× | 80 of 90 | 6 of 6 |" in shown
    assert "| int8 | 4 | 200 | 50 | 4.00× |" in shown
    assert "| int8 | 600 | 60 | 0.10× |" in shown


def test_the_page_of_calls_tells_what_a_camera_has_missed():
    row = {"setting": "together", "work": "write", "threads": 1, "pictures": 200, "missed": 0.005, "share": 0.8}
    shown = calls_table.render_sharing(
        {
            "machine": describe_machine().model_dump(),
            "packages": ["chat.sdl", "pictures.sdl"],
            "seconds": 7,
            "results": [{**row, "picture_ms": {"p99": 20.0}}],
        }
    )

    assert "| together | write | 1 | 0.5 % of 200 | 20.0 | 80 % |" in shown


def test_a_step_is_told_by_kind_of_node_and_small_kinds_only_in_the_sum():
    kinds = {"lm_head": 2.0, "down_proj": 1.5, "Cast": 0.01}
    steps = {"command": "c", "steps": 30, "variants": {"int8": {"16": kinds, "512": kinds}}}

    page = render(results(), steps=steps)

    assert "| lm_head | 2.00 | 2.00 |" in page
    assert "Cast" not in page
    assert "| all | 3.51 | 3.51 |" in page
