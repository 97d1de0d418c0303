"""A small table, and traces to play on it."""

from sanderling.run.emulation.table import LatencyTable

BASELINES = (
    "fixed",
    "fixed,device=gpu",
    "round-robin",
    "sel",
    "least-slack",
    "heft",
    "fixed-delay",
    "fixed-delay,device=any,delay=2,batch=3",
)
CONTENDERS = ("default", "article", *(f"baseline:{name}" for name in BASELINES))
OVERLOAD = "camera:a@30fps×2,deadline=33+poisson:b@60/s,deadline=50,priority=-1+bursty:a@10/s,burst=90,rows=2"


def table(**changes: object) -> LatencyTable:
    thermal = {"tau_s": 4.0, "r_c_per_w": 16.0, "throttle_c": 70.0, "slowdown": 2.0}
    content: dict[str, object] = {
        "source": "test",
        "devices": {
            "npu": {"power_w": 4.0, "idle_w": 0.2, "thermal": thermal},
            "gpu": {"power_w": 3.0, "idle_w": 0.3},
            "cpu": {"power_w": 3.0, "idle_w": 0.4, "capacity": 2},
        },
        "models": {
            "a": {
                "npu": {"latency_ms": {"1": 6, "4": 15}, "jitter": 0.1},
                "gpu": {"latency_ms": {"1": 11}},
                "cpu": {"latency_ms": {"1": 30}},
            },
            "b": {"npu": {"latency_ms": {"1": 9}}, "cpu": {"latency_ms": {"1": 50}}},
        },
    }
    return LatencyTable.model_validate(content | changes)
