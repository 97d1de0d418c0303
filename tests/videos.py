"""Videos and animations for tests, made by OpenCV and Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def numbered(count: int, *, width: int = 64, height: int = 48) -> list[np.ndarray]:
    """Frames in BGR, each with its number as its brightness, uint8 (H, W, 3)."""
    return [np.full((height, width, 3), 30 + 8 * index, np.uint8) for index in range(count)]


def number_of(pixels: np.ndarray) -> int:
    """Which of ``numbered`` it is."""
    return round((float(pixels.mean()) - 30) / 8)


def write_video(path: Path, frames: list[np.ndarray], *, fps: float = 20.0) -> Path:
    """A video; MJPG in ``.avi`` can be cut anywhere, mp4v in others cannot."""
    import cv2

    code = "MJPG" if path.suffix == ".avi" else "mp4v"
    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*code), fps, (width, height))
    for frame in frames:
        writer.write(frame)
    writer.release()
    return path


def write_animation(path: Path, frames: list[np.ndarray]) -> Path:
    """An animated GIF with 50 ms a frame."""
    pictures = [Image.fromarray(frame[:, :, ::-1]) for frame in frames]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=50, loop=0)
    return path
