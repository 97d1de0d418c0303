"""Packages that were not built: graphs, and golden outputs of one's choice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from sanderling.core.arrays import write_npz
from sanderling.core.precision import Precision
from sanderling.model.graph import input_specs, output_specs
from sanderling.model.manifest import Golden, Manifest, Source, Variant
from sanderling.model.package import GoldenVectors, Package, file_entries, write_manifest
from tests.models import chain, run_directly, save

TOLERANCE = {"fp32": 1e-4, "int8": 5e-2}


def package_of(
    folder: Path,
    graphs: Mapping[str, onnx.ModelProto],
    calls: list[dict[str, np.ndarray]],
    name: str = "tiny",
    *,
    engines: tuple[str, ...] = ("onnxruntime",),
) -> Package:
    """A package of these variants, with what they return for ``calls`` as golden vectors."""
    outputs = {variant: [run_directly(graph, call) for call in calls] for variant, graph in graphs.items()}
    return _written(folder, graphs, calls, outputs, name, engines)


def package_with(folder: Path, golden: Mapping[str, Mapping[str, np.ndarray]], *, name: str = "tiny") -> Package:
    """A package whose golden outputs are given, by variant and output; the first axis counts the calls.

    Its outputs have a dynamic first axis, as its input ``x`` has. Its graphs are never run.
    """
    graph = chain(["Relu"], shape=["N", 4])
    del graph.graph.output[:]
    for output, array in golden["fp32"].items():
        kind = onnx.TensorProto.STRING if array.dtype.kind == "U" else onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.graph.output.append(onnx.helper.make_tensor_value_info(output, kind, ["N", *array.shape[2:]]))
    count = len(next(iter(golden["fp32"].values())))
    calls = [{"x": np.full((1, 4), index, np.float32)} for index in range(count)]
    outputs = {
        variant: [{output: array[index] for output, array in named.items()} for index in range(count)]
        for variant, named in golden.items()
    }
    return _written(folder, dict.fromkeys(golden, graph), calls, outputs, name)


def _written(folder, graphs, calls, outputs, name, engines=("onnxruntime",)) -> Package:
    folder.mkdir()
    for variant, graph in graphs.items():
        save(graph, folder / f"{variant}.onnx")
    inputs = {key: np.stack([call[key] for call in calls]) for key in calls[0]}
    stacked = {
        variant: {key: _plain(np.stack([result[key] for result in results])) for key in results[0]}
        for variant, results in outputs.items()
    }
    write_npz(folder / "golden.npz", GoldenVectors(inputs, stacked).to_arrays())
    first = graphs["fp32"]
    manifest = Manifest(
        name=name,
        source=Source(format="onnx", name="tiny.onnx"),
        inputs=input_specs(first),
        outputs=output_specs(first),
        variants=tuple(
            Variant(
                id=variant,
                precision=Precision(variant),
                file=f"{variant}.onnx",
                size_bytes=(folder / f"{variant}.onnx").stat().st_size,
                engines=engines,
            )
            for variant in graphs
        ),
        chosen="fp32",
        golden=Golden(file="golden.npz", samples=len(calls), tolerance={key: TOLERANCE[key] for key in graphs}),
        files=file_entries(folder),
    )
    write_manifest(folder, manifest)
    return Package.open(folder)


def _plain(array: np.ndarray) -> np.ndarray:
    """Text as a file without pickles holds it."""
    return array.astype(np.str_) if array.dtype.kind == "O" else array
