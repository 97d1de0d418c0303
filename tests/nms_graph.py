"""Non-maximum suppression appended to a graph that gives YOLOv8's output, as exporters do it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

ROWS = 100


def with_nms(model: onnx.ModelProto, *, classes: int, anchors: int, most_overlap: float) -> onnx.ModelProto:
    """Replace the output (1, 4 + classes, anchors) by (1, 100, 6): edges of boxes, score and class, best first."""
    graph = model.graph
    constants = {
        "parts": np.int64([4, classes]),
        "halves": np.int64([2, 2]),
        "most": np.int64([ROWS]),
        "overlap": np.float32([most_overlap]),
        "least": np.float32([0.001]),
        "zeros": np.zeros((1, classes, anchors), np.float32),
        "one": np.float32([1]),
        "line": np.int64([1, classes * anchors]),
        "anchors": np.int64([anchors]),
        "half": np.float32([0.5]),
        "first": np.int64([0]),
        "last": np.int64([2]),
    }
    graph.initializer.extend(numpy_helper.from_array(array, f"nms_{name}") for name, array in constants.items())

    def node(kind: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
        names = [[f"nms_{name}" for name in text.split()] for text in (inputs, outputs)]
        return helper.make_node(kind, *names, name=f"nms_{outputs.split()[0]}_node", **attributes)

    graph.node.append(helper.make_node("Split", [graph.output[0].name, "nms_parts"], ["nms_raw", "nms_scores"], axis=1))
    graph.node.extend(
        [
            node("Transpose", "raw", "boxes", perm=[0, 2, 1]),
            node("NonMaxSuppression", "boxes scores most overlap least", "chosen", center_point_box=1),
            node("Shape", "chosen", "number", end=1),
            node("Expand", "one number", "ones"),
            node("ScatterND", "zeros chosen ones", "mask"),
            node("Mul", "scores mask", "kept"),
            node("Reshape", "kept line", "in_line"),
            node("TopK", "in_line most", "best place", axis=1),
            node("Mod", "place anchors", "anchor"),
            node("Div", "place anchors", "class"),
            node("Cast", "class", "number_of_class", to=onnx.TensorProto.FLOAT),
            node("Squeeze", "anchor first", "anchor_line"),
            node("Gather", "boxes anchor_line", "best_boxes", axis=1),
            node("Split", "best_boxes halves", "centre sides", axis=2),
            node("Mul", "sides half", "half_sides"),
            node("Sub", "centre half_sides", "low"),
            node("Add", "centre half_sides", "high"),
            node("Unsqueeze", "best last", "score_column"),
            node("Unsqueeze", "number_of_class last", "class_column"),
            node("Concat", "low high score_column class_column", "found", axis=2),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("nms_found", onnx.TensorProto.FLOAT, [1, ROWS, 6]))
    return model
