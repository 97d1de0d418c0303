"""What is checked of an exported ArkTS project here: its types and rules, and that it computes as the package does."""

from __future__ import annotations

import base64
import inspect
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sanderling.core.errors import EngineError
from sanderling.core.progress import Progress
from sanderling.model.package import Package
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.policy import vectors
from sanderling.workshop.targets.base import Proof
from sanderling.workshop.targets.harmonyos import toolchain
from sanderling.workshop.targets.harmonyos.module import MODULE, RAWFILE

_SOURCES = f"{MODULE}/src/main/ets"
IMPORTS = (
    f"{MODULE}={MODULE}/Index.ets",
    f"libsanderling.so={MODULE}/src/main/cpp/types/libsanderling/Index.d.ts",
)
_SHOWN = 3  # findings that a message holds
_LEVELS = {"none": "disabled", "basic": "basic", "all": "all"}
_PICTURES = ((480, 640), (641, 480), (90, 97))  # height and width
_STEP = 1 / 255


def prove_project(
    package: Package, folder: Path, models: Sequence[Mapping[str, Any]], progress: Progress
) -> tuple[list[Proof], tuple[str, ...]]:
    """Check an exported project, and run it on Node; returns what was proved, and what could not be.

    Args:
        package: that was exported.
        folder: of the project.
        models: as ``ModelFile.to_json`` says them.
        progress: told about each check.

    Raises:
        UnavailableError: Node.js or its packages are missing.
        EngineError: one of the checks could not be run.
    """
    checks = [check_sources(folder), replay_vectors(folder)]
    progress.stage("check ArkTS", 4)
    progress.advance(2)
    if package.manifest.preprocessing is not None:
        checks.append(compare_pictures(folder, package.manifest.preprocessing))
    progress.advance()
    golden = list(run_golden(package, folder, models))
    progress.advance()
    remaining = (
        () if golden else ("golden calls through the module: weights beside a graph have no place in its stand-in",)
    )
    return [*checks, *golden], remaining


def check_sources(folder: Path) -> Proof:
    """Types, and the rules of ArkTS, of every ``.ets`` file."""
    told = _json(toolchain.run_script("check.js", [str(folder), *IMPORTS]))
    found = [
        f"{each['file']}:{each['line']} {each['message']}" for each in told["findings"] if each["severity"] == "error"
    ]
    what = f"faults that the type checker and the linter find in {told['files']} .ets files"
    if found:
        what += f" ({'; '.join(found[:_SHOWN])})"
    return Proof(what, toolchain.compiler_label(), float(len(found)), 0.0, passed=not found)


def replay_vectors(folder: Path) -> Proof:
    """Every decision of the policy's vectors, made by the project's own files."""
    cases = vectors.read()
    jobs = [{"function": case.function, "arguments": _ordered(case)} for case in cases]
    answers = _with_job(jobs, "vectors.js", [str(folder / _SOURCES / "policy")])
    other = [case for case, answer in zip(cases, answers, strict=True) if not vectors.same(answer, case.result)]
    what = f"decisions of {len(cases)} that are not those of the policy's test vectors"
    if other:
        what += f" (the first: {other[0].function})"
    return Proof(what, f"Node {toolchain.state().node}", float(len(other)), 0.0, passed=not other)


def compare_pictures(folder: Path, preprocessing: Preprocessing) -> Proof:
    """Pictures as the device prepares them, with what the host makes of them; in steps of a pixel's 255."""
    from sanderling.run.pictures import fit_pixels, normalize

    pictures = [_picture(preprocessing, size, seed) for seed, size in enumerate(_PICTURES)]
    jobs = [
        {"frame": _frame(picture), "preprocessing": preprocessing.model_dump(mode="json"), "channelsLast": False}
        for picture in pictures
    ]
    answers = _with_job(jobs, "pictures.js", [str(folder / _SOURCES)])
    scale = preprocessing.scale * 255 * _STEP / np.asarray(preprocessing.std, np.float64).max()
    largest = 0.0
    for picture, answer in zip(pictures, answers, strict=True):
        made = np.frombuffer(base64.b64decode(answer["base64"]), np.float32).reshape(answer["shape"])
        wanted = normalize(fit_pixels(picture, preprocessing)[None], preprocessing)
        largest = max(largest, float(np.abs(made - wanted).max() / scale))
    what = f"{len(pictures)} pictures prepared as on the host, largest difference in steps of 1/255"
    return Proof(what, f"Node {toolchain.state().node}", largest, 1.0, passed=largest <= 1.0)


def run_golden(package: Package, folder: Path, models: Sequence[Mapping[str, Any]]) -> Iterator[Proof]:
    """The golden calls through the project's own session, with ONNX Runtime behind the interface of the kit."""
    own = [model for model in models if model["format"] == "ms"]
    variants = [package.variant(str(model["variant"])) for model in own]
    if any(variant.external_data for variant in variants):
        return  # the kit's interface takes bytes; weights beside the graph have no place in it
    level = min((variant.optimization for variant in variants), key=list(_LEVELS).index)
    job = {
        "elsewhere": {
            model["file"]: str(package.file(variant.file)) for model, variant in zip(own, variants, strict=True)
        },
        "channelsLast": sorted({name for model in own for name in model["channelsLast"]}),
        "optimization": _LEVELS[level],
    }
    told = _with_job(job, "golden.js", [str(folder / MODULE), str(folder / RAWFILE)])
    on = f"{toolchain.runtime_label()} in the place of MindSpore Lite Kit"
    for lane in told["lanes"]:
        what = f"self-test of the module on lane {lane['lane']}, {lane['calls']} golden calls, relative error"
        if lane["reason"]:
            what += f" ({lane['reason']})"
        if lane["isClose"]:
            what += ", as close to FP32 as the variant"
        yield Proof(what, on, lane["error"], None if lane["isClose"] else lane["tolerance"], passed=lane["passed"])
    queued = told["queued"]
    ending = f"/{queued['variant']}"
    alone = [lane["error"] for lane in told["lanes"] if lane["passed"] and lane["lane"].endswith(ending)]
    limit = max([queued["tolerance"], *alone])
    what = (
        f"{queued['calls']} golden calls at once through the module's queue, in calls of up to "
        f"{queued['largestCall']} rows, relative error"
    )
    yield Proof(what, on, queued["error"], limit, passed=queued["error"] <= limit)


def _ordered(case: vectors.Case) -> list[Any]:
    """Arguments in the order of the function's parameters; those that are left out are the last."""
    names = [name for name in inspect.signature(vectors.FUNCTIONS[case.function]).parameters if name in case.arguments]
    return [case.arguments[name] for name in names]


def _with_job(job: object, script: str, arguments: Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    with tempfile.TemporaryDirectory(prefix="sanderling-arkts-") as scratch:
        file = toolchain.scratch_file(Path(scratch), json.dumps(job))
        return _json(toolchain.run_script(script, [*arguments, file]))


def _json(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except ValueError as error:
        raise EngineError("node answered something else than JSON") from error


def _picture(preprocessing: Preprocessing, size: tuple[int, int], seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Random blocks and noise, RGB; of the model's own size where nothing is resized."""
    height, width = (preprocessing.height, preprocessing.width) if preprocessing.resize == "none" else size
    source = np.random.default_rng(seed)
    blocks = source.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3)).repeat(8, axis=0).repeat(8, axis=1)
    noise = source.integers(-20, 21, (height, width, 3))
    return (blocks[:height, :width] + noise).clip(0, 255).astype(np.uint8)


def _frame(picture: np.ndarray[Any, np.dtype[np.uint8]]) -> dict[str, Any]:
    """A picture as a frame of RGBA."""
    height, width, _ = picture.shape
    data = np.concatenate([picture, np.full((height, width, 1), 255, np.uint8)], axis=2)
    encoded = base64.b64encode(data.tobytes()).decode("ascii")
    return {"width": width, "height": height, "order": "rgba", "stride": 4 * width, "base64": encoded}
