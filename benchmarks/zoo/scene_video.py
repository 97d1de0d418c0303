"""A video of Fashion-MNIST items that move over textured backgrounds, with the boxes known in every frame.

``python -m benchmarks.zoo.scene_video scenes.mp4`` writes it, and ``scenes.npz`` beside it. Frames are 640×480 pixels;
letterboxed to the scene detector's 160×160 the items have the sizes that it was trained on.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.fashion_scenes import SceneComposer, bounding_box, draw_background, resize_bilinear
from sanderling.core.arrays import write_npz
from sanderling.core.progress import Silent
from sanderling.core.tensor import Array
from sanderling.run.vision.frames import frame_of
from sanderling.run.vision.saving import saving

WIDTH_PX, HEIGHT_PX = 640, 480
SCALE = 4  # pixels of the video for one of the detector's input
FPS = 25.0
ITEMS = 4
SHOT_FRAMES = 50  # then background and items change
_SMALLEST_PX, _LARGEST_PX = 36, 56
_FASTEST_PX = 1.2  # a frame, in the detector's pixels
_SOLID, _VISIBLE = 48.0, 0.3  # as in still scenes

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SceneVideo:
    """Frames and what is on them.

    Attributes:
        frames: uint8, shape (N, 480, 640, 3), RGB.
        boxes: float32, shape (N, ITEMS, 4): left, top, right, bottom in pixels of the video.
        classes: int64, shape (N, ITEMS).
        tracks: int64, shape (N, ITEMS): the number of each item, another in every shot.
    """

    frames: NDArray[np.uint8]
    boxes: Floats
    classes: NDArray[np.int64]
    tracks: NDArray[np.int64]


def compose_video(composer: SceneComposer, frames: int, *, seed: int) -> SceneVideo:
    """Compose a video; the same items, stream and seed give the same bytes.

    Items bounce off the edges of their own quarter of the picture, so that they never cover each other.
    """
    generator = np.random.default_rng([composer.stream, seed])
    video = SceneVideo(
        np.empty((frames, HEIGHT_PX, WIDTH_PX, 3), np.uint8),
        np.empty((frames, ITEMS, 4), np.float32),
        np.empty((frames, ITEMS), np.int64),
        np.empty((frames, ITEMS), np.int64),
    )
    for start in range(0, frames, SHOT_FRAMES):
        background = _large(draw_background(generator))[:HEIGHT_PX, :WIDTH_PX]
        items = [_Item.draw(composer, generator, quarter) for quarter in range(ITEMS)]
        for index in range(start, min(start + SHOT_FRAMES, frames)):
            canvas = background.copy()
            for place, item in enumerate(items):
                video.boxes[index, place] = item.paint(canvas, index - start)
                video.classes[index, place] = item.label
                video.tracks[index, place] = start // SHOT_FRAMES * ITEMS + place
            video.frames[index] = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    return video


@dataclass(frozen=True)
class _Item:
    """An item at the size of the video, and its way."""

    color: Floats  # (3,)
    grey: Floats  # (side, side)
    label: int
    room: tuple[int, int, int, int]  # left, top, width and height that its box moves in
    start: Floats  # (2,), from 0 to 1 of the free way
    speed: Floats  # (2,), pixels a frame

    @classmethod
    def draw(cls, composer: SceneComposer, generator: np.random.Generator, quarter: int) -> "_Item":
        index = int(generator.integers(0, len(composer.images)))
        side = int(generator.integers(_SMALLEST_PX, _LARGEST_PX + 1)) * SCALE
        room = (quarter % 2 * WIDTH_PX // 2, quarter // 2 * HEIGHT_PX // 2, WIDTH_PX // 2, HEIGHT_PX // 2)
        return cls(
            generator.uniform(40, 255, 3).astype(np.float32),
            resize_bilinear(composer.images[index].astype(np.float32), side),
            int(composer.labels[index]),
            room,
            generator.random(2).astype(np.float32),
            (generator.uniform(-_FASTEST_PX, _FASTEST_PX, 2) * SCALE).astype(np.float32),
        )

    def paint(self, canvas: Floats, index: int) -> Floats:
        """Blend it into the canvas where it is after so many frames, and return its box."""
        cover = np.clip(self.grey / np.float32(_SOLID), 0, 1)
        outline = bounding_box(cover > _VISIBLE)
        inner = slice(int(outline[1]), int(outline[3])), slice(int(outline[0]), int(outline[2]))
        height, width = cover[inner].shape
        left, top, room_width, room_height = self.room
        free = np.maximum([room_width - width, room_height - height], 0)
        x, y = np.array([left, top]) + _bounce(self.start * free + self.speed * index, free)
        target = canvas[y : y + height, x : x + width]
        alpha = cover[inner][: target.shape[0], : target.shape[1], None]
        tint = self.color * (0.25 + 0.75 / 255 * self.grey[inner][: target.shape[0], : target.shape[1], None])
        target[:] = target * (1 - alpha) + tint * alpha
        return np.array([x, y, x + target.shape[1], y + target.shape[0]], np.float32)


def _bounce(place: Array, free: Array) -> Array:
    """A way that turns around at 0 and at ``free``."""
    around = np.mod(place, 2 * np.maximum(free, 1))
    return np.asarray(np.rint(np.minimum(around, 2 * np.maximum(free, 1) - around)).clip(0, free), np.int64)


def _large(canvas: Floats) -> Floats:
    """A square canvas at the scale of the video."""
    return resize_bilinear(canvas, len(canvas) * SCALE)


def write_video(path: Path, video: SceneVideo) -> Path:
    """Write the video, and ``NAME.npz`` beside it with boxes, classes and tracks."""
    with saving(path, fps=FPS, progress=Silent()) as write:
        for index, pixels in enumerate(video.frames):
            write(frame_of(pixels, "rgb", index=index))
    truth: dict[str, Array] = {"boxes": video.boxes, "classes": video.classes, "tracks": video.tracks}
    write_npz(path.with_suffix(".npz"), truth)
    return path


def main() -> None:
    """Write a video of the test items."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--frames", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    video = compose_video(SceneComposer.of("t10k"), arguments.frames, seed=arguments.seed)
    print(write_video(arguments.path, video))


if __name__ == "__main__":
    main()
