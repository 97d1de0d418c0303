"""The page of the language models' benchmark says what its numbers say."""

import pytest

from benchmarks.text.table import render


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


@pytest.fixture
def page():
    return render(
        {
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
    )


def test_ratios_are_ours_over_the_peers(page):
    assert "| llama.cpp Q8_0 | +1.00 % | 3.00× | 1.50× | 1.50× | 1.00× | 1.25× |" in page


def test_a_peer_beyond_the_budget_is_marked(page):
    assert "| llama.cpp Q4_0 (beyond 5 %) | +18.00 % | 2.50× |" in page


def test_changes_are_told_by_text_with_their_bound(page):
    assert "| +3.00 % | +3.00 % | +4.00 % |" in page
