"""The page of the server's benchmarks says what its numbers say."""

from __future__ import annotations

import json

from benchmarks.serve.table import FOLDER, PAGE, render


def cell(cpu_ms, *, requests_per_s=100.0):
    return {"cpu_ms": cpu_ms, "requests_per_s": requests_per_s, "latency_ms": {"p50": 1.0, "p99": 2.0}}


def server(name, delay_us, kind, *cpu_ms):
    concurrency = {size: cell(each) for size, each in zip(("1", "32"), cpu_ms, strict=True)}
    return {"name": name, "delay_us": delay_us, "kind": kind, "concurrency": concurrency}


def graph(*servers, failed=()):
    return {
        "request_bytes": 602_112,
        "raw_cpu_ms_a_row": {"1": {"p50": 2.0}, "8": {"p50": 1.8}},
        "servers": list(servers),
        "failed": list(failed),
        "load_average_by_round": [3.0, 5.0],
    }


def results():
    machine = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))["machine"]
    ours, peer = server("Sanderling", None, "http", 2.0, 2.25), server("Triton", 0, "http", 4.0, 3.0)
    failed = {"name": "MLServer", "delay_us": "1000", "told": "it ended: no such thing"}
    times = {"p50": 10.0, "p99": 20.0}
    return {
        "peers": {
            "machine": machine,
            "rounds": 3,
            "seconds": 2.0,
            "graphs": {"mobilenet": graph(ours, peer, failed=[failed]), "tiny": graph(ours, peer)},
        },
        "swap": {
            "callers": 8,
            "requests": 5000,
            "failed": 0,
            "p99_ratio_median": 1.5,
            "swaps": [{"swap_s": 9.0, "before": times, "during": {"p50": 11.0, "p99": 30.0}}],
        },
        "soak": {
            "command": "python -m benchmarks.serve.soak --seconds 600",
            "requests": {"sent": 7, "answered": 6, "wrong": 0, "refused": 0},
            "seconds": 600.0,
            "lost": 0,
            "open_when_their_client_was_killed": 1,
            "happened": {"crashes": 2},
            "bytes_an_hour": {"slope": 1e6, "low": -2e6, "high": 4e6},
        },
    }


def test_efficiency_is_against_the_best_batch_in_process():
    page = render(results())
    assert "| Sanderling | HTTP, binary | – | 2.000 / 2.250 | 0.90 / 0.80 |" in page
    assert "at its best batch (8 rows, 1.800 ms a row)" in page


def test_small_requests_are_compared_with_the_best_peer():
    assert "ours over Triton's: 0.50 at 1, 0.75 at 32 clients." in render(results())


def test_a_peer_that_does_not_start_is_named_with_what_it_told():
    assert "- MLServer: it ended: no such thing" in render(results())


def test_what_the_soak_found_is_told():
    assert "wrong 0, lost 0, open when their client was killed 1. Meanwhile: crashes 2." in render(results())


def test_the_page_in_the_documents_is_what_the_numbers_say():
    kept = {part: json.loads((FOLDER / f"{part}.json").read_text("utf-8")) for part in ("peers", "swap", "soak")}
    assert PAGE.read_text("utf-8") == render(kept)
