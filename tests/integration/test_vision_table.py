"""The page of the vision benchmark says what its numbers say."""

from benchmarks.vision.table import render

MACHINE = {
    "processor": "A",
    "cores": 2,
    "cpu_features": [],
    "memory_bytes": 8 << 30,
    "system": "Linux",
    "python": "3.11",
    "versions": {},
    "architecture": "x86_64",
}


def way(clock_ms, processor_ms):
    return {"clock_ms": {"p50": clock_ms}, "processor_ms": {"p50": processor_ms}}


def test_preprocessing_is_told_with_its_aim_and_what_it_is_ahead_of():
    cases = {"640 letterbox": {"sanderling": way(2.4, 2.0), "OpenCV blobFromImage": way(6.5, 6.0)}}
    result = {"machine": MACHINE, "opencv": "5", "command": "run", "source": "NV12", "repeats": 9, "cases": cases}
    page = render({"preprocess": result | {"limits_ms": {"640 letterbox": 2.5}}})
    assert "| 640 letterbox | 2.40 (2.00) | 6.50 (6.00) | 3.0× | 2.5 ms |" in page
    assert "Streams" not in page


def test_streams_are_told_with_their_latency_and_memory():
    overload = {"p95_of_stages": 1.2, "dropped": 50, "frames": 100}
    real = {"share_of_slowest_stage": 0.95, "slowest_stage": "infer", "slowest_ms": 9.0}
    ran = overload | {"seconds": 60, "p95_ms_by_quarter": [9.0, 9.1], "memory_bytes_by_quarter": [1e8, 1e8]}
    waiting = {"4, 20, 3": {"share_of_slowest_stage": 0.99, "overload": overload}}
    result = {"machine": MACHINE, "opencv": "5", "command": "run", "waiting": waiting, "real": real, "overload": ran}
    page = render({"stream": result})
    assert "| stages that wait 4, 20, 3 ms | 0.990 | 1.20 | 50 of 100 |" in page
    assert "each quarter: 9.0, 9.1 ms; memory after each quarter and at the end: 100, 100 MB" in page
