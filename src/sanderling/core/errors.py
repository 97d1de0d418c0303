"""Every error that Sanderling raises on purpose.

SanderlingError
├── InputError                what the caller gave cannot be used
│   ├── OptionError           an option, a name or a combination of them
│   ├── ModelError            a model file that is unreadable, invalid or unsupported
│   ├── WeightsError          a checkpoint that does not fit its module
│   ├── TensorError           a tensor with the wrong name, dtype, shape or values
│   ├── DataError             calibration or evaluation data, labels included
│   ├── ContextError          a prompt that leaves no room in the model's context
│   └── PackageError          a package that is broken, altered or from another version
├── NotMetError               it ran, and the answer is no (budget missed, verification failed)
├── UnavailableError          a tool, a device or an extra that is needed is missing
├── EngineError               an engine failed while it loaded or executed a valid model
├── GuardError                a result failed its checks, and the policy says to raise
├── RefusedError              the runtime did not run a request
│   ├── DeadlineError         it could not be finished in time
│   └── QueueFullError        too many requests wait already
└── OutputError               the result could not be written

A message says what failed, what was got, what was expected or is available, and what to do next, in one line.
The command line maps these classes to exit codes in ``sanderling.cli.output``.
"""

from __future__ import annotations


class SanderlingError(Exception):
    """Root of all errors raised on purpose."""


class InputError(SanderlingError):
    """What the caller gave cannot be used."""


class OptionError(InputError):
    """An option, a name or a combination of them is wrong."""


class ModelError(InputError):
    """A model file is unreadable, invalid or unsupported."""


class WeightsError(InputError):
    """A checkpoint does not fit its module."""


class TensorError(InputError):
    """A tensor has the wrong name, dtype, shape or values."""


class DataError(InputError):
    """Calibration or evaluation data cannot be used."""


class ContextError(InputError):
    """A prompt leaves no room for an answer in the model's context."""


class PackageError(InputError):
    """A package is broken, altered or from another version."""


class NotMetError(SanderlingError):
    """The work ran and its answer is no."""


class UnavailableError(SanderlingError):
    """A tool, a device or an extra that is needed is missing."""


class EngineError(SanderlingError):
    """An engine failed while it loaded or executed a valid model."""


class GuardError(SanderlingError):
    """A result failed its checks, and the policy says to raise."""


class RefusedError(SanderlingError):
    """The runtime did not run a request."""


class DeadlineError(RefusedError):
    """A request could not be finished in time."""


class QueueFullError(RefusedError):
    """Too many requests wait already."""


class OutputError(SanderlingError):
    """A result could not be written."""


def first_line(error: BaseException, *, limit: int = 300) -> str:
    """Return a foreign error's first non-empty line, cut to ``limit`` characters, for use in our message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0].rstrip(".") if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"
