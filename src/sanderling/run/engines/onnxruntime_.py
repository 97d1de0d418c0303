"""ONNX Runtime on the CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import EngineError, ModelError, first_line
from sanderling.core.precision import Precision
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.run.copies import CopyCount, address_of, contiguous
from sanderling.run.engines.base import (
    Availability,
    DeviceInfo,
    DeviceKind,
    EngineOptions,
    Optimization,
    Placement,
    choose_device,
    cpu_device,
)

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint64)": "uint64",
    "tensor(uint32)": "uint32",
    "tensor(uint16)": "uint16",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
    "tensor(string)": "str",
}
_FATAL_ONLY = 4  # errors come back as exceptions, and are not printed as well
_MISFIT = re.compile(r"output '(.*)' of node .* has shape \{(.*?)\} but the computed .* is \{(.*?)\}")
_MISFIT_FIXED = re.compile(
    r"invalid dimensions for output: (.*) for the following.*\n.*: (\d+) Got: (\d+) Expected: (\d+)"
)
_MODEL_ERRORS = (
    "Fail",
    "InvalidArgument",
    "InvalidGraph",
    "InvalidProtobuf",
    "NoModel",
    "NoSuchFile",
    "NotImplemented",
)


class OnnxRuntime:
    """Runs ONNX graphs with ONNX Runtime's CPU execution provider."""

    name = "onnxruntime"

    def availability(self) -> Availability:
        """Whether the package is installed."""
        try:
            return Availability(True, version=metadata.version("onnxruntime"))
        except metadata.PackageNotFoundError:
            return Availability(False, hint="pip install onnxruntime")

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The processor that this process runs on."""
        return (cpu_device(self.name, tuple(Precision), optimizations=tuple(Optimization)),)

    def load(self, model: Path | bytes, options: EngineOptions) -> OnnxRuntimeExecutable:
        """Create an inference session.

        Raises:
            ModelError: the graph is invalid or has an operator without a kernel.
            EngineError: the session could not be created.
        """
        import onnxruntime

        device = choose_device(self.devices(), options)
        try:
            session = onnxruntime.InferenceSession(
                str(model) if isinstance(model, Path) else model,
                _session_options(options),
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:
            raise _load_error(error, model) from error
        if session.get_providers() != ["CPUExecutionProvider"]:
            raise EngineError(f"onnxruntime runs on {session.get_providers()}: only the CPU was asked for")
        return OnnxRuntimeExecutable(
            session, Placement(device.device, {DeviceKind.CPU: 1.0}, detail="CPUExecutionProvider")
        )


class OnnxRuntimeExecutable:
    """One inference session."""

    def __init__(self, session: Any, placement: Placement) -> None:  # noqa: ANN401 - the runtime is untyped
        self._session = session
        self.placement = placement
        self.inputs = tuple(map(_spec, session.get_inputs()))
        self.outputs = tuple(map(_spec, session.get_outputs()))
        self._output_names = [spec.name for spec in self.outputs]
        self._copied = CopyCount()

    @property
    def copied_bytes(self) -> int:
        """Bytes of inputs that are not contiguous, and of outputs that are inputs; others are used where they lie."""
        return self._copied.total

    def run(self, feeds: Feeds, outputs: Feeds | None = None) -> dict[str, Array]:
        """Execute once.

        Raises:
            EngineError: execution failed, an output does not fit its array, or the session is closed.
        """
        session = self._session  # held until the call ends, whoever closes meanwhile
        if session is None:
            raise EngineError("onnxruntime: the session is closed; load the package again")
        feeds = contiguous(feeds, self._copied)
        try:
            if outputs is not None:
                return run_bound(session, feeds, outputs, self._output_names, self._copied)
            results = session.run(self._output_names, feeds)
        except Exception as error:
            raise EngineError(f"onnxruntime failed while executing: {run_failure(error)}") from error
        return {name: np.asarray(result) for name, result in zip(self._output_names, results, strict=True)}

    def close(self) -> None:
        """Drop the session."""
        self._session = None


def run_bound(
    session: Any,  # noqa: ANN401 - the runtime is untyped
    feeds: Feeds,
    outputs: Feeds,
    names: Sequence[str],
    count: CopyCount,
) -> dict[str, Array]:
    """Run a session of ONNX Runtime on the caller's own memory; arrays must be contiguous."""
    binding = session.io_binding()  # of this call alone, as it keeps the arrays alive
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    addresses = []
    for name in names:
        array = outputs[name]
        addresses.append(address_of(array))
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, addresses[-1])
    session.run_with_iobinding(binding)
    for name, address, made in zip(names, addresses, binding.get_outputs(), strict=True):
        if made.data_ptr() != address:  # an output that is an input is given back where that lies
            np.copyto(outputs[name], made.numpy())
            count.add(outputs[name].nbytes)
    return {name: outputs[name] for name in names}


def run_failure(error: Exception) -> str:
    """Why a run of ONNX Runtime failed, in one line."""
    text = str(error)
    made, fixed = _MISFIT.search(text), _MISFIT_FIXED.search(text)
    if made is not None:
        return f"output '{made[1]}' becomes [{made[3]}]: the array given for it has [{made[2]}]"
    if fixed is not None:
        name, axis, got, expected = fixed.groups()
        return f"output '{name}' has {expected} along axis {axis}: the array given for it has {got}"
    return first_line(error)


def _session_options(options: EngineOptions) -> Any:  # noqa: ANN401 - the runtime is untyped
    import onnxruntime

    levels = {
        Optimization.NONE: onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        Optimization.BASIC: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        Optimization.ALL: onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.graph_optimization_level = levels[options.optimization]
    settings.log_severity_level = _FATAL_ONLY
    if options.lean:
        settings.enable_cpu_mem_arena = False
    if not options.spin:
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return settings


def _load_error(error: Exception, model: Path | bytes) -> ModelError | EngineError:
    name = str(model) if isinstance(model, Path) else "the model"
    text = first_line(error)
    if type(error).__name__ in _MODEL_ERRORS:
        return ModelError(f"onnxruntime does not take {name}: {text}")
    return EngineError(f"onnxruntime could not load {name}: {text}")


def _spec(value: Any) -> TensorSpec:  # noqa: ANN401 - the runtime is untyped
    shape = tuple(
        size if isinstance(size, int) and size > 0 else (str(size or "") or f"{value.name}_axis{axis}")
        for axis, size in enumerate(value.shape)
    )
    return TensorSpec(name=value.name, dtype=_DTYPES.get(value.type, value.type), shape=shape)


ENGINE = OnnxRuntime()
