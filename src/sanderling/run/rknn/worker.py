"""The toolkit's process for an export: `python -m sanderling.run.rknn.worker`.

A message names a graph of fixed shapes and the `.rknn` to write. The net that was written is then served in the
simulator, as the toolkit can simulate only what it has just built.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sanderling.core.errors import EngineError
from sanderling.run.engines.rknn_ import RknnExecutable, chip, placement_of
from sanderling.run.rknn.graphs import read_net
from sanderling.run.rknn.log import raised, working_in
from sanderling.run.rknn.toolkit import Calibration, build_net, layer_errors
from sanderling.run.worker import main


def load(header: dict[str, Any]) -> RknnExecutable:
    """Build the net, write it, and analyse its layers where that is asked for."""
    graph, device = read_net(Path(header["model"])), chip(header["chip"])
    calibration = _calibration(header)
    with tempfile.TemporaryDirectory(prefix="sanderling-rknn-") as scratch, working_in(Path(scratch)) as log:
        folder = Path(scratch)
        loaded, told = build_net(graph, device.device, folder, log, calibration)
        if header["rknn"]:
            _write(loaded, header["rknn"])
        if header["analysed"]:
            _analyse(loaded, header, folder)
    return RknnExecutable(loaded, graph, placement_of(told, device))


def _calibration(header: dict[str, Any]) -> Calibration | None:
    samples = tuple(map(Path, header["samples"]))
    return Calibration(samples, header["algorithm"]) if samples else None


def _write(loaded: Any, file: str) -> None:  # noqa: ANN401 - the toolkit is untyped
    try:
        failed = loaded.export_rknn(file)
    except Exception as error:
        raise EngineError(f"rknn could not write the net: {raised(error)}") from error
    if failed:
        raise EngineError("rknn could not write the net: it does not say why")


def _analyse(loaded: Any, header: dict[str, Any], folder: Path) -> None:  # noqa: ANN401 - the toolkit is untyped
    """Let the toolkit compare its simulator with float, layer by layer, for one call.

    Raises:
        EngineError: it could not.
    """
    try:
        failed = loaded.accuracy_analysis(inputs=header["analysed"], output_dir=str(folder / "snapshot"))
    except Exception as error:
        raise EngineError(f"rknn could not analyse the layers: {raised(error)}") from error
    table = folder / "snapshot" / "error_analysis.txt"
    if failed or not table.is_file():
        raise EngineError("rknn could not analyse the layers: it wrote no table")
    found = [asdict(layer) for layer in layer_errors(table.read_text(errors="replace"))]
    Path(header["layers"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main(load)
