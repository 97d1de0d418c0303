"""Whether a stream keeps its throughput and its latency: `python -m benchmarks.vision.stream`.

Three questions. Do stages overlap: throughput against that of the slowest stage alone, for stages that only wait (as
for an accelerator), and for a real model on a real video. Does the newest frame win: a camera that is twice as fast as
the slowest stage, for ``--seconds``, with the latency of each quarter and the memory at its end. Writes `stream.json`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import psutil

from benchmarks.vision.preprocess import HEIGHT, WIDTH, camera_frame
from sanderling import api
from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array, Feeds
from sanderling.run.session import Session, load
from sanderling.run.vision.conveyor import Conveyor
from sanderling.run.vision.frames import Frame, frame_of
from sanderling.run.vision.pipeline import Pipeline
from sanderling.run.vision.placing import Placement
from sanderling.run.vision.sources import open_source
from sanderling.tasks.vision.classification import Label, best_labels
from sanderling.tasks.vision.drawing import draw_labels

RESULTS = Path(__file__).with_name("stream.json")
WAITING_MS = {"4, 20, 3": (4, 20, 3), "10, 10, 10": (10, 10, 10), "8, 2, 30, 5": (8, 2, 30, 5)}
_SECONDS_OF_WAITING = 6.0
_VIDEO_FRAMES = 240
_OVERLOAD = 2.0
_PARTS = 4


def main() -> None:
    """Measure all three, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the overloaded camera; 600 for the soak")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        package = build_package(Path(folder))
        with load(package, threads=1) as session:
            real = real_stream(session, write_video(Path(folder) / "a.mp4"))
            overload = overloaded(session, arguments.seconds)
    value = {
        "command": f"python -m benchmarks.vision.stream --seconds {arguments.seconds:g}",
        "machine": describe_machine().model_dump(),
        "opencv": cv2.__version__,
        "waiting": {name: waiting(stages) for name, stages in WAITING_MS.items()},
        "real": real,
        "overload": overload,
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(value, indent=1))


def build_package(folder: Path) -> Path:
    """MobileNetV2 with random weights; only what it costs counts here."""
    built = api.build(
        "benchmarks.zoo.mobilenet_v2:mobilenet_v2",
        folder / "mobilenet.sdl",
        inputs=["input=1,3,224,224"],
        dynamic=["batch"],
        preprocess="imagenet",
        precision="fp32",
        threads=1,
        repeats=5,
    )
    return built.path


def waiting(stages_ms: tuple[int, ...]) -> dict[str, Any]:
    """Stages that wait: throughput where nothing is dropped, and latency under twofold overload."""
    stages = [(f"stage {number}", sleeping(each / 1e3)) for number, each in enumerate(stages_ms)]
    belt = Conveyor(range(int(_SECONDS_OF_WAITING / (max(stages_ms) / 1e3))), stages)
    start_s = time.monotonic()
    count = sum(1 for _ in belt)
    throughput = count / (time.monotonic() - start_s)
    slowest_s = max(float(np.mean(belt.durations_s[name])) for name, _ in stages)
    interval_s = max(stages_ms) / 1e3 / _OVERLOAD
    fast = Conveyor(ticks(interval_s, _SECONDS_OF_WAITING), stages, drop="newest")
    latencies_ms = [1e3 * (time.monotonic() - item.born_s) for item in fast]
    total_ms = 1e3 * sum(float(np.mean(fast.durations_s[name])) for name, _ in stages)
    return {
        "share_of_slowest_stage": throughput * slowest_s,
        "overload": {
            "latency_ms": percentiles(latencies_ms),
            "stages_ms": total_ms,
            "p95_of_stages": percentiles(latencies_ms)["p95"] / total_ms,
            "dropped": fast.dropped,
            "frames": fast.captured,
        },
    }


def real_stream(session: Session, video: Path) -> dict[str, Any]:
    """A video through a real model, with labels drawn on it; the first frames are for warming up."""

    def read(outputs: Feeds, placement: Placement, frame: Frame) -> tuple[Label, ...]:
        del placement, frame
        return best_labels(session.manifest, outputs, top=3)

    with open_source(video) as source:
        pipeline = Pipeline(source, session, preprocessing_of(session), read, draw=draw_labels)
        ends_s = [time.monotonic() for _ in pipeline]
    warm = len(ends_s) // 10
    throughput = (len(ends_s) - 1 - warm) / (ends_s[-1] - ends_s[warm])
    statistics = pipeline.statistics()
    slowest, slowest_ms = max(((name, each["mean"]) for name, each in statistics.stages_ms.items()), key=lambda x: x[1])
    return {
        "frames": statistics.results,
        "fps": throughput,
        "slowest_stage": slowest,
        "slowest_ms": slowest_ms,
        "share_of_slowest_stage": throughput * slowest_ms / 1e3,
        "stages_ms": {name: each["p50"] for name, each in statistics.stages_ms.items()},
        "copied_bytes": statistics.copied_bytes,
    }


def overloaded(session: Session, seconds: float) -> dict[str, Any]:
    """A camera of NV12 frames, twice as fast as the model, whose newest frame wins."""
    frames = [camera_frame(seed) for seed in range(4)]
    interval_s = alone_s(session, frames[0]) / _OVERLOAD
    camera = Camera(frames, interval_s, seconds)
    pipeline = Pipeline(camera, session, preprocessing_of(session), first_output, drop="newest")
    latencies_ms: list[tuple[float, float]] = []
    memory: list[int] = []
    start_s = time.monotonic()
    for outcome in pipeline:
        passed_s = time.monotonic() - start_s
        latencies_ms.append((passed_s, outcome.latency_ms))
        if passed_s > seconds * (len(memory) + 1) / _PARTS:
            memory.append(psutil.Process().memory_info().rss)
    memory.append(psutil.Process().memory_info().rss)
    statistics = pipeline.statistics()
    names = ("preprocess", "infer", "read", "deliver")
    total_ms = sum(statistics.stages_ms[name]["mean"] for name in names)
    parts = [[late for at, late in latencies_ms if _part(at, seconds) == part] for part in range(_PARTS)]
    latency_ms = percentiles([late for _, late in latencies_ms])
    return {
        "seconds": seconds,
        "camera_fps": 1 / interval_s,
        "fps": statistics.fps,
        "frames": statistics.frames,
        "dropped": statistics.dropped,
        "stages_ms": total_ms,
        "latency_ms": latency_ms,
        "p95_of_stages": latency_ms["p95"] / total_ms,
        "p95_ms_by_quarter": [percentiles(part)["p95"] for part in parts if part],
        "memory_bytes_by_quarter": memory,
    }


class Camera:
    """Gives frames at fixed times, as a camera does; it waits for nobody."""

    name, live = "camera", True
    fps: float | None = None
    count: int | None = None

    def __init__(self, frames: list[Array], interval_s: float, seconds: float) -> None:
        self._frames, self._interval_s, self._seconds = frames, interval_s, seconds
        self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        """NV12 frames."""
        for index in ticks(self._interval_s, self._seconds):
            if self._closed:
                return
            yield frame_of(self._frames[index % len(self._frames)], "nv12", timestamp_s=time.monotonic(), index=index)

    def close(self) -> None:
        """Give no more."""
        self._closed = True


def ticks(interval_s: float, seconds: float) -> Iterator[int]:
    """Numbers at fixed times."""
    start_s = time.monotonic()
    for number in range(int(seconds / interval_s)):
        time.sleep(max(start_s + number * interval_s - time.monotonic(), 0.0))
        yield number


def sleeping(seconds: float) -> Callable[[Any], Any]:
    """A stage that waits."""

    def stage(value: Any) -> Any:  # noqa: ANN401 - passes anything on
        time.sleep(seconds)
        return value

    return stage


def alone_s(session: Session, pixels: Array) -> float:
    """Seconds of the slowest stage when frames come one by one."""
    frames = (frame_of(pixels, "nv12", index=index) for index in range(60))
    pipeline = Pipeline(_Listed(frames), session, preprocessing_of(session), first_output)
    for _ in pipeline:
        pass
    stages = pipeline.statistics().stages_ms
    return max(stages[name]["p50"] for name in ("preprocess", "infer", "read")) / 1e3


class _Listed:
    name, live = "frames", False
    fps: float | None = None
    count: int | None = None

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    def close(self) -> None:
        """Nothing is open."""


def write_video(path: Path) -> Path:
    """A video of 640×360 in which a picture moves."""
    picture = cv2.cvtColor(camera_frame(0), cv2.COLOR_YUV2BGR_NV12)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30.0, (WIDTH // 2, HEIGHT // 2))
    for index in range(_VIDEO_FRAMES):
        left, top = index * 2 % (WIDTH // 2), index % (HEIGHT // 2)
        writer.write(np.ascontiguousarray(picture[top : top + HEIGHT // 2, left : left + WIDTH // 2]))
    writer.release()
    return path


def first_output(outputs: Feeds, placement: Placement, frame: Frame) -> int:
    """Number of the best class."""
    del placement, frame
    return int(next(iter(outputs.values()))[0].argmax())


def preprocessing_of(session: Session) -> Any:  # noqa: ANN401 - it is always there
    """How frames become the model's input."""
    return session.manifest.preprocessing


def _part(at_s: float, seconds: float) -> int:
    return min(int(at_s / seconds * _PARTS), _PARTS - 1)


if __name__ == "__main__":
    main()
