"""The target `onnx`: an ONNX file that takes frames as a camera gives them, preprocessing included."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx

from sanderling.core.errors import OptionError
from sanderling.core.statistics import relative_error
from sanderling.core.tensor import Array
from sanderling.model.colors import DEFAULT_STANDARD, VIDEO_STANDARDS
from sanderling.model.graph import opset_of, read_graph, write_graph
from sanderling.model.package import Package
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.run.pictures import PIXEL_LIMIT
from sanderling.run.vision.frames import PIXEL_FORMATS, PLANAR_FORMATS, frame_of
from sanderling.run.vision.transforms import transform
from sanderling.workshop.fused_preprocessing import FrameSource, fuse, preprocessing_alone
from sanderling.workshop.targets.base import Exported, ExportRequest, Proof, Refusal, Tool, chosen_variant
from sanderling.workshop.targets.ort_ import onnxruntime_refusals

_FRAMES = 6
_SIZE = re.compile(r"(?P<width>[1-9]\d{0,4})x(?P<height>[1-9]\d{0,4})")
_INPUT = "frame"
_STEP = 1.0  # levels of 255 that host and graph may differ by
_JOINED = 1e-4  # relative error of outputs, of the same tensor in one graph and in two


class FusedOnnx:
    """Writes the variant with its preprocessing in front of it: uint8 in, so that the device does it."""

    name = "onnx"
    summary = "an ONNX file that takes a camera's frames (uint8 RGB, NV12, …) with the preprocessing in the graph"
    devices = ("any",)
    options: Mapping[str, str] = {
        "source": f"pixel format of the frames: {', '.join(PIXEL_FORMATS)}; rgb by default",
        "size": "WIDTHxHEIGHT of the frames, such as 1280x720; the model's own by default",
        "matrix": f"video standard of 4:2:0 frames: {', '.join(VIDEO_STANDARDS)}; {DEFAULT_STANDARD} by default",
    }

    def tools(self) -> Sequence[Tool]:
        """ONNX, which is always here."""
        return (Tool("onnx", found=True, version=metadata.version("onnx")),)

    def variants(self, package: Package, wanted: str | None) -> tuple[str, ...]:
        """The variant that was asked for, or the chosen one."""
        return chosen_variant(package, wanted)

    def check(self, model: onnx.ModelProto, device: str) -> tuple[Refusal, ...]:  # noqa: ARG002 - there is one
        """What ONNX Runtime, which proves the file here, has no kernel for."""
        return onnxruntime_refusals(model)

    def export(self, request: ExportRequest) -> Exported:
        """Join preprocessing and graph, and hold both against the host on frames."""
        package, preprocessing = request.package, request.package.manifest.preprocessing
        if preprocessing is None:
            raise OptionError(
                "target 'onnx' fuses the preprocessing, and the package says none: build it with --preprocess"
            )
        source = _source(request, preprocessing)
        variant = package.variant(*self.variants(package, request.variant))
        request.progress.stage("fuse preprocessing", _FRAMES)
        model = read_graph(package.file(variant.file))
        file = request.folder / f"{Path(variant.file).stem}-{source.format}.onnx"
        data = write_graph(fuse(model, preprocessing, source, name=_INPUT), file)
        alone = request.folder / "preprocessing.onnx"
        write_graph(preprocessing_alone(preprocessing, source, name=_INPUT, opset=opset_of(model)), alone)
        proofs = _proofs(request, preprocessing, source, file, alone)
        alone.unlink()
        shape = " × ".join(map(str, source.shape))
        files = {file.name: f"variant '{variant.id}', input '{_INPUT}' uint8 ({shape}), {source.format}"}
        if data is not None:
            files[data] = f"weights of {file.name}"
        return Exported(
            files=files,
            tool=f"onnx {metadata.version('onnx')}",
            proofs=proofs,
            remaining=("that the device's own runtime takes the file, and what it costs there",),
            next_steps=(f"feed '{_INPUT}' with one frame of {source.width}×{source.height} pixels in {source.format}",),
            notes=(f"resizing is products with constant matrices, {_macs(preprocessing, source) / 1e6:.0f} M MACs",),
        )


def _source(request: ExportRequest, preprocessing: Preprocessing) -> FrameSource:
    options = request.options
    pixel_format = next((each for each in PIXEL_FORMATS if each == options.get("source", "rgb")), None)
    if pixel_format is None:
        raise OptionError(
            f"target 'onnx', --option source={options['source']}: expected one of {', '.join(PIXEL_FORMATS)}"
        )
    standard = options.get("matrix", DEFAULT_STANDARD)
    if standard not in VIDEO_STANDARDS:
        raise OptionError(f"target 'onnx', --option matrix={standard}: expected one of {', '.join(VIDEO_STANDARDS)}")
    text = options.get("size", f"{preprocessing.width}x{preprocessing.height}")
    size = _SIZE.fullmatch(text)
    if size is None:
        raise OptionError(f"target 'onnx', --option size={text}: expected WIDTHxHEIGHT, such as 1280x720")
    width, height = int(size["width"]), int(size["height"])
    if width * height > PIXEL_LIMIT:
        raise OptionError(f"target 'onnx', --option size={text}: expected at most {PIXEL_LIMIT:,} pixels")
    if pixel_format in PLANAR_FORMATS and (width % 2 or height % 2):
        raise OptionError(f"target 'onnx': {pixel_format} frames of {text} pixels: width and height must be even")
    return FrameSource(pixel_format, width, height, standard)


def _proofs(
    request: ExportRequest, preprocessing: Preprocessing, source: FrameSource, file: Path, alone: Path
) -> tuple[Proof, ...]:
    """Frames through the graph of the preprocessing, held against the host; and through the whole."""
    package = request.package
    variant = package.variant(*chosen_variant(package, request.variant))
    options = EngineOptions(threads=1, optimization=Optimization(variant.optimization))
    runtime = engine("onnxruntime")
    std = np.asarray(preprocessing.std).reshape((1, -1, 1, 1) if preprocessing.layout == "NCHW" else (1, 1, 1, -1))
    apart, error = 0.0, 0.0
    with (
        closing(runtime.load(alone, EngineOptions(threads=1))) as first,
        closing(runtime.load(package.file(variant.file), options)) as second,
        closing(runtime.load(file, options)) as whole,
    ):
        name = package.manifest.inputs[0].name
        for seed in range(_FRAMES):
            pixels = _pixels(source, seed)
            tensor = first.run({_INPUT: pixels})["tensor"]
            host, _ = transform(frame_of(pixels, source.format, standard=source.standard), preprocessing)
            apart = max(apart, float((np.abs(tensor - host) * std).max()) / preprocessing.scale)
            joined, expected = whole.run({_INPUT: pixels}), second.run({name: tensor})
            error = max(error, *(relative_error(expected[each], joined[each]) for each in expected))
            request.progress.advance()
    on = f"ONNX Runtime {metadata.version('onnxruntime')} on {platform.machine()}"
    what = f"preprocessing of {_FRAMES} frames in the graph and on the host, largest difference in levels of 255"
    joined_what = f"outputs for {_FRAMES} frames of the joined graph and of its two parts, relative error"
    limit = _STEP * (1 + 1e-3)
    return (
        Proof(what, on, apart, limit, passed=apart <= limit),
        Proof(joined_what, on, error, _JOINED, passed=error <= _JOINED),
    )


def _pixels(source: FrameSource, seed: int) -> Array:
    """Blocks and noise, within what a video standard allows."""
    random = np.random.default_rng(seed)
    height, width, *channels = source.shape
    blocks = random.integers(30, 226, (height // 8 + 1, width // 8 + 1, *channels)).repeat(8, axis=0).repeat(8, axis=1)
    return (blocks[:height, :width] + random.integers(-14, 15, source.shape)).astype(np.uint8)


def _macs(preprocessing: Preprocessing, source: FrameSource) -> int:
    """Multiply-accumulates of resizing; weights in fixed point are two matrices."""
    rows = preprocessing.height * source.height * source.width
    columns = preprocessing.height * source.width * preprocessing.width
    parts = 2 if preprocessing.interpolation == "bicubic" and preprocessing.antialias else 1
    return parts * preprocessing.channels * (rows + columns)


TARGET = FusedOnnx()
