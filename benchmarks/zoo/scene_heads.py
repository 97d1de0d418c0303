"""The scene detector with the outputs of other families, from the same weights, so that all of them find the same."""

import torch
from torch import Tensor, nn

from benchmarks.zoo.scene_detector import STRIDES, SceneDetector, anchor_points

_LEAST_OBJECTNESS = 1e-3
_LEAST_SHARE = 5e-4  # what is less likely counts nowhere
_LEAST_SIDE = 0.1  # cells; items are larger, and the logarithm of less is rounding


def build(head: str = "yolov5") -> nn.Module:
    """Build the detector with other outputs, untrained, in eval mode; it takes the same weights.

    Args:
        head: ``yolov5``, ``yolox``, ``ssd`` or ``centernet``: what is done at the end of the graph.

    Returns:
        Module from float32 (N, 3, 160, 160), RGB in [0, 1], to

        - ``yolov5``: (N, anchors, 5 + 10), where objectness is the highest of the classes' scores;
        - ``yolox``: the same, with sides in cells of the grids of strides 8 and 16;
        - ``ssd``: shares (N, anchors, 4) and logits (N, anchors, 11), whose softmax has the classes' scores scaled to a
          sum of at most 1, and the rest as class 0;
        - ``centernet``: the heat map of stride 8 and its sizes: what is only seen at stride 16 is not found.
    """
    return _FAMILIES[head]().eval()


class Yolov5Scenes(SceneDetector):
    """Centre, sides, objectness and classes in pixels."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to (N, anchors, 15)."""
        raw = super().forward(images).transpose(1, 2)
        objectness = raw[:, :, 4:].amax(dim=2, keepdim=True).clamp(min=_LEAST_OBJECTNESS)
        return torch.cat([raw[:, :, :4], objectness, raw[:, :, 4:] / objectness], dim=2)


class YoloxScenes(Yolov5Scenes):
    """The same in cells."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to (N, anchors, 15)."""
        raw = super().forward(images)
        points, strides = anchor_points([(images.shape[2] // each, images.shape[3] // each) for each in STRIDES])
        corners, strides = (points / strides - 0.5).T, strides.T  # (A, 2), (A, 1)
        centres, sides = raw[:, :, :2] / strides - corners, (raw[:, :, 2:4] / strides).clamp(min=_LEAST_SIDE).log()
        return torch.cat([centres, sides, raw[:, :, 4:]], dim=2)


class SsdScenes(SceneDetector):
    """Boxes in shares and logits, the first of nothing."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Map images (N, 3, H, W) to boxes (N, anchors, 4) and logits (N, anchors, 11)."""
        raw = super().forward(images).transpose(1, 2)
        size = torch.tensor([images.shape[3], images.shape[2]] * 2, dtype=raw.dtype)
        centres, half, scores = raw[:, :, :2], raw[:, :, 2:4] / 2, raw[:, :, 4:]
        shares = scores / scores.sum(dim=2, keepdim=True).clamp(min=1)
        nothing = (1 - shares.sum(dim=2, keepdim=True)).clamp(min=_LEAST_SHARE)
        boxes = torch.cat([centres - half, centres + half], dim=2) / size
        return boxes, torch.cat([nothing, shares.clamp(min=_LEAST_SHARE)], dim=2).log()


class CenternetScenes(SceneDetector):
    """Heat map, sizes and offsets of the finer grid."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Map images (N, 3, H, W) to maps (N, 10, H/8, W/8), (N, 2, …) and (N, 2, …)."""
        raw = super().forward(images)
        height, width = images.shape[2] // STRIDES[0], images.shape[3] // STRIDES[0]
        fine = raw[:, :, : height * width].reshape(raw.shape[0], -1, height, width)
        points, _ = anchor_points([(height, width), (height // 2, width // 2)])
        corners = points[:, : height * width].reshape(2, height, width) / STRIDES[0] - 0.5
        return fine[:, 4:], fine[:, 2:4] / STRIDES[0], fine[:, :2] / STRIDES[0] - corners


_FAMILIES = {"yolov5": Yolov5Scenes, "yolox": YoloxScenes, "ssd": SsdScenes, "centernet": CenternetScenes}
