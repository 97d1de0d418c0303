"""The folder of the target `ascend`: model, settings, command line, and the results of `atc` where it is here."""

from __future__ import annotations

import platform
import shlex
import shutil
from contextlib import closing
from importlib import metadata

import onnx

from sanderling.core.errors import OptionError
from sanderling.core.precision import Precision
from sanderling.model.graph import input_specs, opset_of, read_graph, write_graph
from sanderling.model.lowering import lower
from sanderling.model.manifest import Variant
from sanderling.run.engines import engine
from sanderling.run.engines.base import EngineOptions, Optimization
from sanderling.workshop.quantize.qdq import is_quantized
from sanderling.workshop.targets.ascend import atc, precision
from sanderling.workshop.targets.ascend.aipp import configure, largest_allowed, to_text, worst_difference
from sanderling.workshop.targets.ascend.deploy import integer_nodes, to_deploy
from sanderling.workshop.targets.ascend.reference import difference, in_standard_onnx
from sanderling.workshop.targets.ascend.settings import KIRIN, Settings, input_shapes
from sanderling.workshop.targets.base import Exported, ExportRequest, Proof
from sanderling.workshop.targets.proving import golden_proof

_MODEL, _SCRIPT = "model.onnx", "convert.sh"
_STEPS = 1.0


class Writing:
    """One export on its way; what it has written and proved so far."""

    def __init__(self, request: ExportRequest, variant: Variant, settings: Settings) -> None:
        self._request, self._variant, self._settings = request, variant, settings
        self._package = request.package
        self._wanted = request.package.variant(request.variant).precision
        self._source = lower(read_graph(request.package.file(variant.file)), "ascend")
        self._program = atc.KIRIN if request.device == KIRIN else atc.PROGRAM
        self._model = to_deploy(self._source) if is_quantized(self._source) else self._source
        self._integers = any(node.op_type == "AscendQuant" for node in self._model.graph.node)
        self._files: dict[str, str] = {}
        self._proofs: list[Proof] = []

    def written(self) -> Exported:
        """Write everything.

        Raises:
            OptionError: the options exclude each other, or do not fit the model.
            ModelError: `atc` does not take the graph.
            EngineError: `atc` failed, crashed or took too long.
        """
        progress = self._request.progress
        progress.stage("write model and settings")
        commands = self._commands()
        for command in commands:
            atc.check(command)
        self._write_model()
        self._write(_SCRIPT, _script(commands), f"runs {self._program}; needs nothing else from here")
        progress.stage("run golden vectors")
        self._prove_model()
        here = atc.find_program(self._program) is not None
        if here:
            self._convert(commands)
        return Exported(
            files=self._files,
            tool=self._program if here else f"its own writer, as {self._program} is not on PATH",
            proofs=tuple(self._proofs),
            remaining=self._remaining(converted=here),
            next_steps=() if here else (f"sh {_SCRIPT}",),
            details={
                "commands": [command.line() for command in commands],
                "opset": opset_of(self._model),
                "nodes_in_int8": list(integer_nodes(self._model)),
            },
        )

    def _commands(self) -> list[atc.Command]:
        """A command for each file; the settings that they name are written as well."""
        settings, specs = self._settings, input_specs(self._model)
        batches = settings.batches or (1,)
        shapes = [input_shapes(specs, settings, batch) for batch in batches]
        named = {} if self._program == atc.KIRIN else self._write_settings()
        return [
            atc.Command(
                soc_version="" if self._program == atc.KIRIN else self._request.device,
                model=_MODEL,
                output="model" if len(batches) == 1 else f"model_b{batch}",
                input_shape=shape,
                input_format="NCHW" if self._has_pictures() and not settings.dims else "ND",
                dynamic_batch_size=settings.dynamic_batch,
                dynamic_image_size=settings.image_sizes,
                dynamic_dims=settings.dims,
                in_integers=self._integers,
                program=self._program,
                **named,
            )
            for batch, shape in zip(batches, shapes, strict=True)
        ]

    def _write_settings(self) -> dict[str, str]:
        """Write the files that flags name; returns these flags, and those of precision."""
        settings, manifest = self._settings, self._package.manifest
        flags = {"precision_mode": settings.precision_mode, "precision_mode_v2": settings.precision_mode_v2}
        if not any(flags.values()):
            flags["precision_mode_v2"] = "origin" if self._wanted == Precision.FP32 else "fp16"
        keeps_all = not {*flags.values()}.isdisjoint(atc.KEEPING)
        if settings.source:
            flags["insert_op_conf"] = self._write_aipp()
        sensitive = precision.sensitive_nodes(manifest, self._model)
        if sensitive:
            text, what = precision.precision_file(sensitive), "nodes that eight bits would cost most, at high precision"
            flags["op_precision_mode"] = self._write("precision.ini", text, what)
        overflowing = precision.overflowing_nodes(manifest, self._model)
        if overflowing and not keeps_all:
            text, what = precision.keep_dtype_file(overflowing), "nodes whose values FP16 cannot hold, kept in FP32"
            flags["keep_dtype"] = self._write("keep_dtype.cfg", text, what)
        if settings.black_list or settings.white_list:
            text = precision.mix_list_file(settings.black_list, settings.white_list)
            flags["modify_mixlist"] = self._write("mixlist.json", text, "types of operators in mixed precision")
        return flags

    def _write_aipp(self) -> str:
        """Write the settings of AIPP, and prove them against the package's own preprocessing."""
        preprocessing, settings = self._package.manifest.preprocessing, self._settings
        if preprocessing is None or len(self._model.graph.input) != 1:
            raise OptionError(
                f"option source={settings.source}: the package says no preprocessing for a single input; build it with "
                "--preprocess, or leave source= out"
            )
        for height, width in settings.image_sizes:
            sized = preprocessing.model_copy(update={"height": height, "width": width})
            configure(sized, settings.source, settings.matrix)
        aipp = configure(preprocessing, settings.source, settings.matrix, fixed_size=not settings.image_sizes)
        apart, limit = worst_difference(aipp, preprocessing), largest_allowed(aipp)
        what = f"AIPP's arithmetic on {settings.source} against the package's preprocessing, levels of 255"
        self._proofs.append(Proof(what, "NumPy, in integers and FP16", apart, limit, passed=apart <= limit))
        return self._write("aipp.cfg", to_text(aipp), f"{settings.source} to the model's input, on the chip")

    def _write_model(self) -> None:
        form = "with AscendQuant and AscendDequant" if self._integers else "as atc reads it"
        data = write_graph(self._model, self._request.folder / _MODEL)
        self._files[_MODEL] = f"variant '{self._variant.id}', {form}"
        if data:
            self._files[data] = "its weights"

    def _prove_model(self) -> None:
        """Run the golden vectors on the file, Ascend's operators by their definitions."""
        model = onnx.load(self._request.folder / _MODEL)  # not checked: ONNX has no AscendQuant
        version = metadata.version("onnxruntime")
        on = f"ONNX Runtime {version} on {platform.machine()}"
        if self._integers:
            on = f"Ascend's operators by their definitions, {on}"
            golden = self._package.golden()
            calls = [golden.call(index) for index in range(len(golden))]
            apart = difference(self._source, model, calls)
            what = f"each operator against the QDQ graph, quantisation steps ({apart.share:.1e} of the values differ)"
            self._proofs.append(Proof(what, on, apart.steps, _STEPS, passed=apart.steps <= _STEPS))
            model = in_standard_onnx(model)
        options = EngineOptions(optimization=Optimization.NONE)
        with closing(engine().load(model.SerializeToString(), options)) as executable:
            self._proofs.append(golden_proof(executable, self._package, self._variant.id, on=on))

    def _convert(self, commands: list[atc.Command]) -> None:
        self._request.progress.stage(f"run {self._program}", len(commands))
        for command in commands:
            atc.convert(command, self._request.folder, timeout_s=self._settings.timeout_s)
            self._files[command.result] = f"offline model for {self._request.device}, made by {self._program} here"
            self._request.progress.advance()
        for path in self._request.folder.iterdir():  # reports and caches are left where it runs
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in self._files:
                path.unlink()

    def _remaining(self, *, converted: bool) -> tuple[str, ...]:
        device = self._request.device
        remaining = [] if converted else [f"that your {self._program} converts the model for {device}"]
        if self._integers:
            remaining.append(
                "how a chip rounds AscendDequant's scale, and that layers of up to 16 channels gain nothing"
            )
        if self._settings.source:
            remaining.append("AIPP's rounding: it is compared as its documents give it")
        return (*remaining, f"accuracy where {device} computes in FP16, latency and memory")

    def _has_pictures(self) -> bool:
        preprocessing = self._package.manifest.preprocessing
        planar = preprocessing is None or preprocessing.layout == "NCHW"
        return planar and all(len(spec.shape) == len("NCHW") for spec in input_specs(self._model))

    def _write(self, name: str, text: str, what: str) -> str:
        (self._request.folder / name).write_text(text, encoding="utf-8")
        self._files[name] = what
        return name


def _script(commands: list[atc.Command]) -> str:
    """A shell script that runs every command in its own folder."""
    program = commands[0].program
    missing = shlex.quote(f"{program} is not on PATH: {atc.HINTS[program]}")
    return "\n".join(
        [
            "#!/bin/sh",
            "set -eu",
            'cd "$(dirname "$0")"',
            f"command -v {program} > /dev/null || {{ echo {missing} >&2; exit 3; }}",
            *(command.line() for command in commands),
            "",
        ]
    )
