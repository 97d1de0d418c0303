"""What is examined: a graph, the package it lies in, and the data it is examined on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from sanderling.core.errors import ModelError, OptionError, PackageError
from sanderling.core.tensor import Array, TensorSpec, random_feeds
from sanderling.measure.samples import Samples
from sanderling.model.graph import input_specs, lifted, output_specs, read_graph
from sanderling.model.manifest import Manifest
from sanderling.model.package import EVIDENCE, MANIFEST, GoldenVectors, Package
from sanderling.model.preprocessing import Preprocessing, parse_preprocessing
from sanderling.model.sound import SoundSpec
from sanderling.run.session import check_one_graph

_OBSERVED = 16


@dataclass(frozen=True)
class Patient:
    """A model file, or a package of which the FP32 variant is looked at.

    Attributes:
        path: that was given.
        file: the graph on disk.
        model: the same in memory, constants lifted to initialisers and shapes inferred.
        package: that the graph lies in.
        preprocessing: how pictures are made into the input for this examination.
        problems: of the package's files, one line each.
    """

    path: Path
    file: Path
    model: onnx.ModelProto
    package: Package | None = None
    preprocessing: Preprocessing | None = None
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the package or the file."""
        return self.path.name

    @property
    def manifest(self) -> Manifest | None:
        """Of the package."""
        return self.package.manifest if self.package else None

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Of the graph."""
        return input_specs(self.model)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Of the graph."""
        return output_specs(self.model)

    @property
    def sound(self) -> SoundSpec | None:
        """How recordings must be made into the input."""
        return self.manifest.sound if self.manifest else None

    @property
    def reference(self) -> Preprocessing | None:
        """How pictures must be made into the input: the package's word, else the user's."""
        return (self.manifest.preprocessing if self.manifest else None) or self.preprocessing

    @property
    def picture(self) -> TensorSpec | None:
        """The one input that looks like pictures: float32, four axes, 1 or 3 channels."""
        if len(self.inputs) != 1 or self.inputs[0].dtype != "float32" or len(self.inputs[0].shape) != 4:
            return None
        return self.inputs[0] if {1, 3} & {self.inputs[0].shape[1], self.inputs[0].shape[3]} else None

    @property
    def channel_axis(self) -> int:
        """Of the picture input: 3 for NHWC, otherwise 1."""
        shape = self.inputs[0].shape
        return 3 if shape[3] in (1, 3) and shape[1] not in (1, 3) else 1

    @cached_property
    def golden(self) -> GoldenVectors | None:
        """The package's golden vectors; None without a package, or when their file was changed."""
        if self.package is None or any(f"'{self.package.manifest.golden.file}'" in line for line in self.problems):
            return None
        return self.package.golden()

    @cached_property
    def real_golden(self) -> GoldenVectors | None:
        """The golden vectors when their inputs are data; a build without data takes random ones."""
        if self.golden is None or self.package is None or not (self.package.path / EVIDENCE).is_file():
            return None
        told = json.loads((self.package.path / EVIDENCE).read_text("utf-8"))
        return None if str(told.get("evaluation_data", "random")).endswith("random inputs") else self.golden

    def feeds(self, samples: Samples | None) -> tuple[list[dict[str, Array]], str]:
        """Calls to observe the graph on, and where they come from: data, golden vectors, or noise."""
        if samples is not None:
            count = min(_OBSERVED, len(samples))
            step = len(samples) // count
            return [samples.one(index * step) for index in range(count)], f"{count} samples of the data"
        if self.golden is not None:
            return [self.golden.call(index) for index in range(len(self.golden))], f"{len(self.golden)} golden inputs"
        return [random_feeds(self.inputs, seed=seed) for seed in range(2)], "random inputs (give --data for real ones)"


def admit(path: str | Path, preprocess: str | None) -> Patient:
    """Read a model or a package; a package with changed files is admitted, and its problems are listed.

    Raises:
        OptionError: the preprocessing cannot be read, or does not fit the model.
        ModelError: the file cannot be read.
        PackageError: the manifest or the graph's file cannot be read.
    """
    place = Path(path)
    if not is_package_path(place):
        model = described(place)
        return Patient(place, place, model, preprocessing=_preprocessing(preprocess, model))
    package = Package.open(place, check_hashes=False, check_files=False)
    check_one_graph(package)
    problems = tuple(package.problems())
    file = package.file(package.manifest.variants[0].file)
    try:
        model = described(file)
    except ModelError as error:
        raise PackageError(f"package {path}: {'; '.join(problems) or error}; fetch a whole copy") from error
    own = package.manifest.preprocessing if preprocess is None else _preprocessing(preprocess, model)
    return Patient(place, file, model, package, own, problems)


def is_package_path(path: Path) -> bool:
    """Whether a path is meant as a package."""
    return (path / MANIFEST).is_file() or path.name.endswith((".sdl", ".sdl.zip"))


def first_graph(path: Path) -> Path:
    """The file itself, or a package's FP32 graph."""
    if not is_package_path(path):
        return path
    package = Package.open(path, check_hashes=False, check_files=False)
    return package.file(package.manifest.variants[0].file)


def described(file: Path) -> onnx.ModelProto:
    """Read a graph, with a name for every node, its constants as initialisers and every shape that can be inferred."""
    model = lifted(read_graph(file))
    for node in model.graph.node:
        node.name = node.name or f"{node.op_type} of {node.output[0]}"
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        return model
    return onnx.shape_inference.infer_shapes(model)


def _preprocessing(text: str | None, model: onnx.ModelProto) -> Preprocessing | None:
    if text is None:
        return None
    inputs = input_specs(model)
    if len(inputs) != 1:
        raise OptionError(f"--preprocess is for models with one input: this one has {len(inputs)}")
    return parse_preprocessing(text, inputs[0])
