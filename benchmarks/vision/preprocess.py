"""What a camera's frame costs on its way to the model: `python -m benchmarks.vision.preprocess`.

NV12 of 1280×720 to a float tensor, on one core, by this package and by the ways that people take otherwise; all take
turns on the same frames. Writes `preprocess.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy comes

import cv2
import numpy as np
from PIL import Image

from sanderling.core.machine import describe_machine
from sanderling.core.statistics import percentiles
from sanderling.core.tensor import Array
from sanderling.model.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.placing import fit
from sanderling.run.vision.transforms import Transform

RESULTS = Path(__file__).with_name("preprocess.json")
WIDTH, HEIGHT = 1280, 720
_FRAMES = 6  # different ones, so that none lies in a cache
_IMAGENET: dict[str, Any] = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
CASES = {
    "640 letterbox": Preprocessing(width=640, height=640, resize="letterbox"),
    "640 letterbox, no antialias": Preprocessing(width=640, height=640, resize="letterbox", antialias=False),
    "224 of 256, ImageNet": Preprocessing(width=224, height=224, resize_to=256, **_IMAGENET),
    "224 of 256, ImageNet, no antialias": Preprocessing(
        width=224, height=224, resize_to=256, antialias=False, **_IMAGENET
    ),
    "224 stretch, ImageNet, no antialias": Preprocessing(
        width=224, height=224, resize="stretch", antialias=False, **_IMAGENET
    ),
}
LIMITS_MS = {"640 letterbox": 2.5, "224 of 256, ImageNet": 0.8}


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=200, help="of every way and case")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    frames = [camera_frame(seed) for seed in range(_FRAMES)]
    value = {
        "command": "python -m benchmarks.vision.preprocess",
        "machine": describe_machine().model_dump(),
        "opencv": cv2.__version__,
        "threads": 1,
        "repeats": arguments.repeats,
        "source": f"NV12 {WIDTH}×{HEIGHT}",
        "limits_ms": LIMITS_MS,
        "cases": {name: measure(case, frames, arguments.repeats) for name, case in CASES.items()},
    }
    RESULTS.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(value["cases"], indent=1))


def camera_frame(seed: int) -> Array:
    """A smooth picture with edges, within what a camera gives, uint8 (H * 3 / 2, W)."""
    random = np.random.default_rng(seed)
    small = random.integers(0, 256, (HEIGHT // 40, WIDTH // 40, 3)).astype(np.uint8)
    picture = cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    for _ in range(30):
        left, top = int(random.integers(0, WIDTH - 100)), int(random.integers(0, HEIGHT - 100))
        color = [int(each) for each in random.integers(0, 256, 3)]
        cv2.rectangle(picture, (left, top), (left + 90, top + 70), color, -1)
    planes = cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420)
    chroma = planes[HEIGHT:].reshape(2, -1).T.reshape(HEIGHT // 2, WIDTH)
    return np.ascontiguousarray(np.concatenate([planes[:HEIGHT], chroma]))


def measure(case: Preprocessing, frames: list[Array], repeats: int) -> dict[str, Any]:
    """Milliseconds of each way: on the clock, and of the processor."""
    own, out = Transform(case), np.empty(case.shape, np.float32)
    ways: dict[str, Callable[[Array], Any]] = {
        "sanderling": lambda pixels: own(frame_of(pixels, "nv12"), out=out),
        "OpenCV blobFromImage": lambda pixels: by_blob(pixels, case),
        "Pillow and NumPy": lambda pixels: by_pillow(pixels, case),
        "NumPy": lambda pixels: by_numpy(pixels, case),
    }
    clock: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for name, way in ways.items():
        for pixels in frames[:2]:
            way(pixels)
        del name
    for repeat in range(repeats):
        for name, way in ways.items():
            pixels = frames[repeat % len(frames)]
            start, start_cpu = time.perf_counter(), time.thread_time()
            way(pixels)
            processor[name].append(1e3 * (time.thread_time() - start_cpu))
            clock[name].append(1e3 * (time.perf_counter() - start))
    return {name: {"clock_ms": percentiles(clock[name]), "processor_ms": percentiles(processor[name])} for name in ways}


def by_blob(pixels: Array, case: Preprocessing) -> Array:
    """As in OpenCV's tutorials: convert, resize without antialiasing, pad or crop, and ``blobFromImage``."""
    bgr = cv2.cvtColor(pixels, cv2.COLOR_YUV2BGR_NV12)
    if case.resize == "letterbox":
        found = fit(case, WIDTH, HEIGHT)
        inner = cv2.resize(bgr, (found.width, found.height))
        below, right = case.height - found.top - found.height, case.width - found.left - found.width
        border = (found.top, below, found.left, right)
        bgr = cv2.copyMakeBorder(inner, *border, cv2.BORDER_CONSTANT, value=(case.pad,) * 3)
    elif case.resize == "shorter":
        short = case.resize_to or case.height
        whole = cv2.resize(bgr, (short * WIDTH // HEIGHT, short))
        left, top = (whole.shape[1] - case.width) // 2, (whole.shape[0] - case.height) // 2
        bgr = whole[top : top + case.height, left : left + case.width]
    mean = tuple(255 * each for each in case.mean)
    blob: Array = cv2.dnn.blobFromImage(bgr, case.scale, (case.width, case.height), mean, swapRB=True)
    if case.std != (1.0, 1.0, 1.0):
        np.divide(blob, np.array(case.std, np.float32).reshape(1, 3, 1, 1), out=blob)
    return blob


def by_pillow(pixels: Array, case: Preprocessing) -> Array:
    """As torchvision does on the host: convert, Pillow's resizing with antialiasing, and NumPy."""
    picture = Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_YUV2RGB_NV12))
    found = fit(case, WIDTH, HEIGHT)
    inner = picture.resize((found.width, found.height), Image.Resampling.BILINEAR, box=found.box)
    whole = Image.new("RGB", (case.width, case.height), (case.pad,) * 3)
    whole.paste(inner, (found.left, found.top))
    values: Array = np.asarray(whole).astype(np.float32) * np.float32(case.scale)
    values = (values - np.array(case.mean, np.float32)) / np.array(case.std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def by_numpy(pixels: Array, case: Preprocessing) -> Array:
    """As one writes it down: the equations on whole arrays, and bilinear sampling without antialiasing."""
    luma = pixels[:HEIGHT].astype(np.float32) - 16
    chroma = pixels[HEIGHT:].reshape(HEIGHT // 2, WIDTH // 2, 2).repeat(2, axis=0).repeat(2, axis=1)
    u, v = (chroma[..., each].astype(np.float32) - 128 for each in (0, 1))
    red, blue = 1.164 * luma + 1.596 * v, 1.164 * luma + 2.018 * u
    rgb = np.stack([red, 1.164 * luma - 0.813 * v - 0.391 * u, blue], axis=-1).clip(0, 255)
    found = fit(case, WIDTH, HEIGHT)
    left, top, right, bottom = found.box
    ys = (top + (np.arange(found.height) + 0.5) * (bottom - top) / found.height - 0.5).clip(0, HEIGHT - 1)
    xs = (left + (np.arange(found.width) + 0.5) * (right - left) / found.width - 0.5).clip(0, WIDTH - 1)
    y0, x0 = ys.astype(int), xs.astype(int)
    y1, x1 = np.minimum(y0 + 1, HEIGHT - 1), np.minimum(x0 + 1, WIDTH - 1)
    wy, wx = (ys - y0)[:, None, None].astype(np.float32), (xs - x0)[None, :, None].astype(np.float32)
    above = rgb[y0][:, x0] * (1 - wx) + rgb[y0][:, x1] * wx
    below = rgb[y1][:, x0] * (1 - wx) + rgb[y1][:, x1] * wx
    whole = np.full((case.height, case.width, 3), case.pad, np.float32)
    inner = above * (1 - wy) + below * wy
    whole[found.top : found.top + found.height, found.left : found.left + found.width] = inner
    values = (whole * np.float32(case.scale) - np.array(case.mean, np.float32)) / np.array(case.std, np.float32)
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


if __name__ == "__main__":
    main()
