"""The rows that a build decides on, and others that it reports on."""

from __future__ import annotations

from dataclasses import dataclass

from sanderling.core.errors import ModelError, OptionError
from sanderling.core.progress import Event, Progress
from sanderling.measure.questions import Asked, read_asked
from sanderling.model.multimodal import QUESTIONS
from sanderling.workshop.multimodal.branches import BranchedModel
from sanderling.workshop.multimodal.options import MultimodalBuildOptions

_HELD_OUT_SHARE = 0.25
_LEAST_PICTURES = 4


@dataclass(frozen=True)
class Data:
    """Rows to decide on, and others to report on; None where there are none.

    Attributes:
        origin: of the rows that are reported on, in words.
    """

    calibration: Asked | None
    evaluation: Asked | None
    origin: str


def read_data(model: BranchedModel, options: MultimodalBuildOptions, progress: Progress) -> Data:
    """Read what the options name.

    Raises:
        ModelError: a model that answers says no answers.
        OptionError: there are too few pictures to hold some out.
        DataError: a file cannot be used.
    """
    answers = model.answers if options.task == QUESTIONS else None
    if options.task == QUESTIONS and not answers:
        raise ModelError(f"{options.source} says no answers: give BranchedModel(answers=…), one for each score")
    calibration = read_asked(options.calibration, answers) if options.calibration else None
    evaluation = read_asked(options.evaluation, answers) if options.evaluation else None
    if calibration is None and evaluation is None:
        reason = "no --calibration and no --eval: only FP32 is made, and no accuracy is known"
        progress.event(Event(kind="no-data", subject="accuracy", reason=reason))
        return Data(None, None, "no data")
    if calibration is not None and evaluation is None:
        if len(calibration.pictures) < _LEAST_PICTURES:
            raise OptionError(
                f"{calibration.name} has {len(calibration.pictures)} pictures: at least {_LEAST_PICTURES} are needed"
            )
        calibration, evaluation = calibration.divided(_HELD_OUT_SHARE, options.seed)
        return Data(calibration, evaluation, f"{len(evaluation)} rows of {evaluation.name}, on pictures held out")
    assert evaluation is not None
    return Data(calibration, evaluation, f"{len(evaluation)} rows of {evaluation.name}")
