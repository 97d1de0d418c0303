"""Building a net with Rockchip's toolkit, inside its own process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sanderling.core.errors import ModelError
from sanderling.run.rknn.graphs import NetGraph
from sanderling.run.rknn.log import raised, read_log, reason

_NO_KERNEL = re.compile(r"No lowering found for: (?P<name>[^,]+), node type = (?P<kind>\w+)")
_ERRORS = re.compile(r"\[(?P<kind>\w+)\] (?P<name>\S+)\s+(?P<entire>[\d.]+)\s*\|\s*[\d.]+\s+(?P<single>[\d.]+)\s*\|")


@dataclass(frozen=True)
class Calibration:
    """What the toolkit chooses INT8 ranges from.

    Attributes:
        samples: a list of `.npy` files, a sample each.
        algorithm: ``normal`` or ``kl_divergence``.
    """

    samples: tuple[Path, ...]
    algorithm: str = "normal"


@dataclass(frozen=True)
class LayerError:
    """How far the simulator is from the float net at a layer.

    Attributes:
        entire: cosine similarity with the errors of all layers before it.
        single: with its own error alone; None where that was not measured.
    """

    name: str
    kind: str
    entire: float
    single: float | None = None


def build_net(
    graph: NetGraph, chip: str, folder: Path, log: Path, calibration: Calibration | None = None
) -> tuple[Any, list[str]]:
    """Build a net and prepare the simulator; the net, and what was printed.

    Args:
        graph: of fixed shapes.
        chip: such as ``rk3588``.
        folder: that this process works in, see ``log.working_in``.
        log: where what is printed goes.
        calibration: quantises a float graph; without, float stays float and Q/DQ keeps its codes.

    Raises:
        ModelError: the toolkit or the chip does not take the graph.
    """
    loaded, failure = _run_steps(graph, chip, folder, calibration)
    told = read_log(log)
    if loaded is None:
        raise ModelError(f"rknn on {chip} does not take {graph.called}: {reason(told, failure)}")
    missing = [f"{found['kind']} ('{found['name']}')" for line in told if (found := _NO_KERNEL.search(line))]
    if missing:
        raise ModelError(
            f"rknn on {chip} does not take {graph.called}: no kernel for operator {', '.join(missing)}, "
            "though the simulator has one"
        )
    return loaded, told


def layer_errors(told: str) -> tuple[LayerError, ...]:
    """The table that the toolkit's ``accuracy_analysis`` writes; layers without numbers are fused into the next."""
    found = map(_ERRORS.match, told.splitlines())
    return tuple(
        LayerError(line["name"], line["kind"], float(line["entire"]), float(line["single"])) for line in found if line
    )


def _run_steps(graph: NetGraph, chip: str, folder: Path, calibration: Calibration | None) -> tuple[Any, str]:
    """The net, or None and what was raised."""
    from rknn.api import RKNN

    (folder / "model.onnx").write_bytes(graph.proto.SerializeToString())
    config = {} if calibration is None else {"quantized_algorithm": calibration.algorithm}
    build = {} if calibration is None else {"dataset": _listed(calibration.samples, folder)}
    loaded = RKNN(verbose=True)
    try:
        steps = (
            lambda: loaded.config(target_platform=chip, **config),
            lambda: loaded.load_onnx("model.onnx"),
            lambda: loaded.build(do_quantization=calibration is not None, **build),
            loaded.init_runtime,
        )
        if not any(step() for step in steps):
            return loaded, ""
        failure = ""
    except Exception as error:  # noqa: BLE001 - the toolkit raises whatever it meets; the caller tells it
        failure = raised(error)
    loaded.release()
    return None, failure


def _listed(samples: Sequence[Path], folder: Path) -> str:
    listing = folder / "samples.txt"
    listing.write_text("\n".join(map(str, samples)) + "\n")
    return str(listing)
