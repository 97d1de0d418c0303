"""Trains the scene detector on CPU and records how well it does.

Run from the repository root::

    python -m benchmarks.zoo.train_scene_detector [--epochs N] [--seed 0] [--threads 1]
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.fashion_scenes import SIZE_PX, SceneComposer, Scenes
from benchmarks.zoo.scene_detector import DISTANCE_BINS, NUM_CLASSES, SceneDetector, build, distances_to_pixels
from benchmarks.zoo.training import TrainingRecord, parameter_groups, write_record, write_weights
from sanderling.core.tensor import TensorSpec
from sanderling.measure.average_precision import Matches, match, mean_average_precision
from sanderling.measure.detection import Objects
from sanderling.run.vision.detections import EVALUATION_RULES
from sanderling.run.vision.reading import find_reader

EPOCHS = 8  # twelve minutes on one thread of a busy machine
TRAINING_SCENES = 6_000
TEST_SCENES = 1_000
NAME = "scene_detector"
BATCH_SIZE = 16
MAX_LEARNING_RATE = 3e-3
WEIGHT_DECAY = 0.02
BOX_WEIGHT, DISTANCE_WEIGHT, CLASS_WEIGHT = 5.0, 1.0, 1.0
ALIGNED_ANCHORS = 8  # anchors that an item is learned by
SCORE_POWER, OVERLAP_POWER = 0.5, 6.0


@dataclass(frozen=True, kw_only=True)
class SceneRecord(TrainingRecord):
    """What ``weights/training.json`` says about the network; mean average precisions in percent."""

    map50: float
    map50_95: float
    test_images: int
    training_images: int


@dataclass(frozen=True)
class Targets:
    """What the anchors of a batch are to say.

    Attributes:
        scores: float32, shape (N, anchors, classes), in [0, 1].
        boxes: float32, shape (N, anchors, 4), left, top, right, bottom; meaningless outside ``positive``.
        positive: bool, shape (N, anchors).
    """

    scores: Tensor
    boxes: Tensor
    positive: Tensor


def main() -> None:
    """Train the network and write ``weights/``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.train_scene_detector", description=__doc__)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--scenes", type=int, default=TRAINING_SCENES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    record = train_and_save(epochs=arguments.epochs, scenes=arguments.scenes, seed=arguments.seed)
    print(f"mAP50 {record.map50:.2f}, mAP50-95 {record.map50_95:.2f} after {record.seconds:.0f} s")


def train_and_save(*, epochs: int, scenes: int, seed: int) -> SceneRecord:
    """Train, write the safetensors file in float16 and the entry in ``training.json``.

    Args:
        epochs: passes over the scenes, which are mirrored and recoloured each time.
        scenes: how many are composed from the 60,000 training images.
        seed: of scenes, weights, order and augmentation.
    """
    started_s = time.perf_counter()
    torch.manual_seed(seed)
    model = SceneDetector()
    train(model, SceneComposer.of("train").compose(scenes, seed=seed), epochs=epochs, seed=seed)
    seconds = round(time.perf_counter() - started_s, 1)
    state = {key: _half(value) for key, value in model.state_dict().items()}
    write_weights(NAME, state)
    kept = build()
    kept.load_state_dict(state)
    map50, map50_95 = measure_map(kept, SceneComposer.of("t10k").compose(TEST_SCENES, seed=seed))
    record = SceneRecord(
        map50=map50,
        map50_95=map50_95,
        test_images=TEST_SCENES,
        training_images=scenes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        epochs=epochs,
        seed=seed,
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        seconds=seconds,
        command=f"python -m benchmarks.zoo.train_scene_detector --epochs {epochs} --scenes {scenes} --seed {seed}",
    )
    write_record(NAME, record)
    return record


def train(model: SceneDetector, scenes: Scenes, *, epochs: int, seed: int) -> None:
    """Train in place with AdamW on a one-cycle schedule; leaves ``model`` in eval mode.

    Args:
        model: whose ``predict`` is trained.
        scenes: to train on.
        epochs: passes over ``scenes``.
        seed: of order and augmentation.
    """
    generator = np.random.default_rng(seed)
    # Twice as fast on CPU, and the layout spreads from here.
    model.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(parameter_groups(model, WEIGHT_DECAY))
    steps = len(scenes.images) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, MAX_LEARNING_RATE, epochs=epochs, steps_per_epoch=steps, pct_start=0.1
    )
    for epoch in range(epochs):
        started_s = time.perf_counter()
        losses = []
        for images, boxes, classes in _batches(scenes, generator):
            loss = detection_loss(model, images, boxes, classes)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - started_s
        print(f"epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.4f}, {seconds:.0f} s", flush=True)
    model.eval()


def detection_loss(model: SceneDetector, images: Tensor, boxes: Tensor, classes: Tensor) -> Tensor:
    """Sum the losses of classes, boxes and distances, each over the sum of the targets' scores.

    Args:
        model: in training mode.
        images: float32, shape (N, 3, H, W).
        boxes: float32, shape (N, M, 4), pixels.
        classes: int64, shape (N, M); −1 where there is no box.
    """
    distances, logits, points, strides = model.predict(images)
    left_top, right_bottom = distances_to_pixels(distances, strides).chunk(2, dim=1)
    predicted = torch.cat([points - left_top, points + right_bottom], dim=1).transpose(1, 2)  # (N, anchors, 4)
    logits = logits.transpose(1, 2)
    with torch.no_grad():
        targets = assign(logits.sigmoid(), predicted, points.T, boxes, classes)
    total = targets.scores.sum().clamp(min=1.0)
    class_loss = functional.binary_cross_entropy_with_logits(logits, targets.scores, reduction="sum")
    weight = targets.scores.sum(dim=2)[targets.positive]
    expected = targets.boxes[targets.positive]  # (positives, 4)
    box_loss = ((1 - generalized_iou(predicted[targets.positive], expected)) * weight).sum()
    own_points = points.T.expand(len(images), -1, -1)[targets.positive]
    own_strides = strides.T.expand(len(images), -1, -1)[targets.positive]
    steps = torch.cat([own_points - expected[:, :2], expected[:, 2:] - own_points], dim=1) / own_strides
    own_distances = distances.transpose(1, 2)[targets.positive].reshape(-1, 4, DISTANCE_BINS)
    distance_loss = (_distribution_loss(own_distances, steps) * weight).sum()
    return (CLASS_WEIGHT * class_loss + BOX_WEIGHT * box_loss + DISTANCE_WEIGHT * distance_loss) / total


def assign(scores: Tensor, predicted: Tensor, points: Tensor, boxes: Tensor, classes: Tensor) -> Targets:
    """Give each item the anchors inside its box whose class and box are best aligned with it.

    Args:
        scores: of the classes, shape (N, anchors, NUM_CLASSES), in [0, 1].
        predicted: boxes, shape (N, anchors, 4), pixels.
        points: centres of the anchors, shape (anchors, 2), pixels.
        boxes: of the items, shape (N, M, 4), pixels.
        classes: of the items, shape (N, M); −1 where there is none.

    Source: Feng et al. 2021, "TOOD: Task-aligned One-stage Object Detection", section 3.2.
    """
    real = (classes >= 0)[:, :, None]  # (N, M, 1)
    inside = ((points > boxes[:, :, None, :2]) & (points < boxes[:, :, None, 2:])).all(dim=3) & real  # (N, M, anchors)
    overlap = pairwise_iou(boxes, predicted) * inside
    own = torch.take_along_dim(scores.transpose(1, 2), classes.clamp(min=0)[:, :, None], dim=1)
    alignment = own.pow(SCORE_POWER) * overlap.pow(OVERLAP_POWER) * inside
    ranks = torch.where(inside, alignment + 1e-9, 0.0)
    best = torch.topk(ranks, ALIGNED_ANCHORS, dim=2)
    chosen = torch.zeros_like(inside).scatter(2, best.indices, best.values > 0)
    # An anchor in several boxes belongs to the one that its own box overlaps most.
    owner = torch.where(chosen, overlap + 1e-9, 0.0).argmax(dim=1)  # (N, anchors)
    chosen &= torch.arange(boxes.shape[1])[None, :, None] == owner[:, None]
    alignment, overlap = alignment * chosen, overlap * chosen
    scale = overlap.amax(dim=2, keepdim=True) / alignment.amax(dim=2, keepdim=True).clamp(min=1e-9)
    quality = (alignment * scale).amax(dim=1)  # (N, anchors)
    labels = torch.gather(classes.clamp(min=0), 1, owner)
    return Targets(
        scores=functional.one_hot(labels, NUM_CLASSES) * quality[:, :, None],
        boxes=torch.take_along_dim(boxes, owner[:, :, None], dim=1),
        positive=chosen.any(dim=1),
    )


def pairwise_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of (N, M, 4) with (N, K, 4): shape (N, M, K)."""
    a, b = boxes[:, :, None], others[:, None]
    common = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(dim=3)
    areas = (a[..., 2:] - a[..., :2]).prod(dim=3) + (b[..., 2:] - b[..., :2]).prod(dim=3)
    return common / (areas - common).clamp(min=1e-9)


def generalized_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union, less the empty share of the enclosing box; (K, 4) each, shape (K,), in [-1, 1].

    Source: Rezatofighi et al. 2019, "Generalized Intersection over Union", equation 4 and algorithm 1.
    """
    low, high = torch.maximum(boxes[:, :2], others[:, :2]), torch.minimum(boxes[:, 2:], others[:, 2:])
    common = (high - low).clamp(min=0).prod(dim=1)
    union = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1) + (others[:, 2:] - others[:, :2]).prod(dim=1) - common
    outer_low, outer_high = torch.minimum(boxes[:, :2], others[:, :2]), torch.maximum(boxes[:, 2:], others[:, 2:])
    hull = (outer_high - outer_low).prod(dim=1).clamp(min=1e-9)
    return common / union.clamp(min=1e-9) - (hull - union) / hull


def measure_map(model: nn.Module, scenes: Scenes) -> tuple[float, float]:
    """Compute mAP50 and mAP50-95 in percent.

    Args:
        model: in eval mode, as ``build`` makes it.
        scenes: with their boxes.
    """
    matched = []
    picture = TensorSpec(name="images", dtype="float32", shape=("N", 3, SIZE_PX, SIZE_PX))
    output = TensorSpec(name="found", dtype="float32", shape=("N", 4 + NUM_CLASSES, "anchors"))
    reader = find_reader((picture,), (output,))
    assert reader is not None
    with torch.no_grad():
        for start in range(0, len(scenes.images), BATCH_SIZE):
            rows = slice(start, start + BATCH_SIZE)
            found = reader.read({"found": model(to_inputs(scenes.images[rows])).numpy()}, EVALUATION_RULES)
            matched.append(match(found, Objects(scenes.boxes[rows].astype(np.float64), scenes.classes[rows])))
    matches = Matches.joined(matched)
    return mean_average_precision(matches, thresholds=slice(0, 1)), mean_average_precision(matches)


def to_inputs(images: NDArray[np.uint8]) -> Tensor:
    """Turn uint8 (N, H, W, 3) into the network's input: float32 (N, 3, H, W) in [0, 1], channels last in memory."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def _distribution_loss(logits: Tensor, steps: Tensor) -> Tensor:
    """Cross-entropy of (K, 4, DISTANCE_BINS) with the two bins around (K, 4) distances, mean over the sides."""
    steps = steps.clamp(0, DISTANCE_BINS - 1.01)
    low = steps.floor().long()
    share = steps - low
    log_probabilities = logits.log_softmax(dim=2)
    at_low = log_probabilities.gather(2, low[:, :, None])[:, :, 0]
    at_high = log_probabilities.gather(2, low[:, :, None] + 1)[:, :, 0]
    return -(at_low * (1 - share) + at_high * share).mean(dim=1)


def _batches(scenes: Scenes, generator: np.random.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Whole batches in random order; each is mirrored or not, and its colours change their places."""
    order = generator.permutation(len(scenes.images))
    for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
        chosen = np.sort(order[start : start + BATCH_SIZE])
        images, boxes = scenes.images[chosen][..., generator.permutation(3)], scenes.boxes[chosen]
        if generator.random() < 0.5:
            images = images[:, :, ::-1]
            boxes = np.where(
                boxes.any(axis=2, keepdims=True), np.array([SIZE_PX, 0, SIZE_PX, 0], np.float32) - boxes, 0
            )
            boxes = np.abs(boxes[..., [2, 1, 0, 3]])
        yield (
            to_inputs(np.ascontiguousarray(images)),
            torch.from_numpy(boxes),
            torch.from_numpy(scenes.classes[chosen]),
        )


def _half(value: Tensor) -> Tensor:
    return value.half() if value.is_floating_point() else value


if __name__ == "__main__":
    main()
