"""The branches of a build, each made into a package of its own, with what those before it give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from sanderling.core.precision import Precision
from sanderling.core.progress import Progress
from sanderling.core.tensor import TensorSpec
from sanderling.measure.multimodal import Joint, known_texts, picture_samples, text_samples
from sanderling.measure.questions import Asked
from sanderling.measure.samples import Samples
from sanderling.model.manifest import Budget, Source
from sanderling.model.multimodal import BranchSpec, MultimodalSpec, Task
from sanderling.model.package import Package
from sanderling.model.preprocessing import Preprocessing, parse_preprocessing
from sanderling.run.text.inputs import TextInputs, check_text_inputs
from sanderling.workshop.export.source import Exported
from sanderling.workshop.material import Material, random_samples
from sanderling.workshop.multimodal.branches import Branch, BranchedModel
from sanderling.workshop.multimodal.data import Data
from sanderling.workshop.multimodal.options import MultimodalBuildOptions
from sanderling.workshop.multimodal.source import export_branch, write_tokenizer
from sanderling.workshop.options import BuildOptions, InputOption, parse_input
from sanderling.workshop.pipeline import build

FOLDER = "branches"
_BUDGET = Budget(metric="cosine", limit=0.01)  # of a branch by itself; the whole is judged by its answers


class Making:
    """Makes the branches of a model in their order.

    Args:
        folder: of the package.
        model: as it was loaded.
        source: where it came from.
        data: to calibrate and to compare on.
        options: of the build.
        progress: told about stages, steps and events.

    Attributes:
        packages: of the branches made so far.
    """

    def __init__(
        self,
        folder: Path,
        model: BranchedModel,
        source: Source,
        data: Data,
        options: MultimodalBuildOptions,
        progress: Progress,
    ) -> None:
        self._folder, self._model, self._source = folder, model, source
        self._data, self._options, self._progress = data, options, progress
        self._task = cast("Task", options.task)  # checked with the options
        self.packages: dict[str, Package] = {}
        self._specs: list[BranchSpec] = []
        self._samples: dict[str, dict[str, Samples]] = {"calibration": {}, "evaluation": {}}

    def make(self) -> None:
        """Make all: those that read pictures and texts, then the fusion.

        Raises:
            InputError: a branch cannot be made, or does not fit.
        """
        for branch in self._model.branches:
            if branch.modality != "fusion":
                self._leaf(branch)
        for branch in self._model.branches:
            if branch.modality == "fusion":
                self._fusion(branch)

    def joint(self, kind: str, spec: MultimodalSpec | None = None) -> Joint | None:
        """The scores of all rows to decide on (``calibration``), or to report on (``evaluation``)."""
        asked: Asked | None = getattr(self._data, kind)
        if asked is None:
            return None
        return Joint(spec or self.spec({}), self.packages, asked, self._samples[kind], threads=self._options.threads)

    def spec(self, variants: Mapping[str, dict[str, str]]) -> MultimodalSpec:
        """The graph of the branches, with these variants of the whole."""
        order = {branch.name: at for at, branch in enumerate(self._model.branches)}
        return MultimodalSpec(
            task=self._task,
            branches=tuple(sorted(self._specs, key=lambda spec: order[spec.name])),
            variants=dict(variants),
            scale=self._model.scale,
            bias=self._model.bias,
            score=self._model.score,
        )

    def evaluation(self, name: str) -> Samples | None:
        """What a branch reads of the rows that are reported on."""
        return self._samples["evaluation"].get(name)

    def _leaf(self, branch: Branch) -> None:
        inputs = tuple(parse_input(text) for text in branch.inputs)
        data = {"calibration": self._data.calibration, "evaluation": self._data.evaluation}
        preprocessing, tokenizer = None, None
        read: Callable[[Asked], Samples]
        if branch.modality == "picture":
            assert branch.preprocess is not None
            preprocessing = parse_preprocessing(branch.preprocess, inputs[0])
            read = partial(picture_samples, spec=inputs[0], preprocessing=preprocessing)
        else:
            longest = inputs[0].concrete_shape()[1]
            check_text_inputs(inputs, longest)
            tokenizer = write_tokenizer(branch, longest, self._folder, f"{branch.name}.tokenizer.json")
            reading = TextInputs(tokenizer, self._folder / tokenizer.file, inputs)
            read = partial(text_samples, reader=reading)
            for asked in data.values():
                if asked is not None:
                    known_texts(asked, reading, self._progress)
        self._progress.stage(f"read data of {branch.name}")
        for name, asked in data.items():
            if asked is not None:
                self._samples[name][branch.name] = read(asked)
        spec = BranchSpec(name=branch.name, modality=branch.modality, folder=self._place(branch), tokenizer=tokenizer)
        self._make(branch, spec, inputs, self._material(inputs, branch.name, preprocessing))

    def _fusion(self, branch: Branch) -> None:
        inputs = tuple(parse_input(text) for text in branch.inputs)
        spec = BranchSpec(name=branch.name, modality="fusion", folder=self._place(branch), takes=dict(branch.takes))
        partial_spec = MultimodalSpec.model_construct(task=self._task, branches=(*self._specs, spec), variants={})
        for name in ("calibration", "evaluation"):
            joint = self.joint(name, partial_spec)
            if joint is not None:
                feeds = joint.fusion_feeds(spec, joint.float_leaves())
                count = len(next(iter(feeds.values())))
                self._samples[name][branch.name] = Samples(feeds, None, tuple(map(str, range(count))))
        self._make(branch, spec, inputs, self._material(inputs, branch.name, None))

    def _place(self, branch: Branch) -> str:
        return f"{FOLDER}/{branch.name}.sdl"

    def _material(self, inputs: tuple[TensorSpec, ...], name: str, preprocessing: Preprocessing | None) -> Material:
        calibration, evaluation = (self._some(kind, name) for kind in ("calibration", "evaluation"))
        return Material(
            preprocessing=preprocessing,
            labels=tuple(self._model.answers) if self._is_fusion(name) else None,
            calibration=calibration,
            evaluation=evaluation or random_samples(inputs, self._options.seed),
            evaluation_origin=self._data.origin,
            metric="cosine",
        )

    def _is_fusion(self, name: str) -> bool:
        return any(branch.name == name and branch.modality == "fusion" for branch in self._model.branches)

    def _some(self, kind: str, name: str) -> Samples | None:
        """At most as many samples as a branch is calibrated, or compared, on."""
        samples = self._samples[kind].get(name)
        if samples is None:
            return None
        order = np.random.default_rng(self._options.seed).permutation(len(samples))
        return samples.pick(np.sort(order[: self._options.calibration_limit]))

    def _make(self, branch: Branch, spec: BranchSpec, inputs: tuple[InputOption, ...], material: Material) -> None:
        """Build the branch's package as any other model's."""
        precisions = self._options.precisions if material.calibration is not None else (Precision.FP32,)
        output = self._folder / spec.folder
        branch_options = BuildOptions(
            source=f"{self._source.name}, {branch.name}",
            output=output,
            inputs=inputs,
            dynamic_batch=True,
            precisions=precisions,
            budget=_BUDGET,
            threads=self._options.threads,
            repeats=self._options.repeats,
            seed=self._options.seed,
        )

        def make_graph(options: BuildOptions, progress: Progress) -> Exported:
            progress.stage(f"export {branch.name}")
            exported = export_branch(branch, options, self._source)
            return Exported(exported.model, exported.source, exported.check, material=material)

        build(branch_options, self._progress, make_graph)
        self.packages[branch.name] = Package.open(output, check_hashes=False)
        self._specs.append(spec)
