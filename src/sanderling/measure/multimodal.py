"""What a model of several branches answers, for every choice of a variant for each branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cached_property

import numpy as np

from sanderling.core.progress import Event, Progress
from sanderling.core.statistics import CONFIDENCE
from sanderling.core.tensor import Array, Feeds, TensorSpec
from sanderling.measure.accuracy import OutputRecord, judge
from sanderling.measure.questions import Asked
from sanderling.measure.samples import Samples
from sanderling.model.manifest import Accuracy, Metric
from sanderling.model.multimodal import BranchSpec, MultimodalSpec
from sanderling.model.package import Package
from sanderling.model.preprocessing import Preprocessing
from sanderling.run.engines import engine
from sanderling.run.pictures import read_pixels
from sanderling.run.placing import default_options
from sanderling.run.text.inputs import TextInputs

_BATCH = 64
FLOAT = "fp32"


def picture_samples(asked: Asked, spec: TensorSpec, preprocessing: Preprocessing) -> Samples:
    """The pictures as samples of the branch that reads them.

    Raises:
        DataError: one cannot be read.
    """
    pixels = np.stack([read_pixels(file, preprocessing) for file in asked.pictures])
    return Samples({spec.name: pixels}, None, tuple(file.name for file in asked.pictures), preprocessing)


def text_samples(asked: Asked, reader: TextInputs) -> Samples:
    """The texts as samples of the branch that reads them.

    Raises:
        OptionError: one is empty.
        DataError: one has no word that the branch knows.
        ContextError: one is too long.
    """
    rows = [reader.feeds(reader.ids(text)) for text in asked.texts]
    return Samples({name: np.concatenate([row[name] for row in rows]) for name in rows[0]}, None, asked.texts)


def run_variant(package: Package, variant: str, samples: Samples, *, threads: int) -> Array:
    """The only output of a variant for all samples, along its first axis."""
    found = package.variant(variant)
    with closing(
        engine(found.engines[0]).load(package.file(found.file), default_options(found, threads=threads))
    ) as executable:
        batched = all(0 in spec.dynamic_axes for spec in package.manifest.inputs)
        calls = samples.batches(_BATCH if batched else 1)
        return np.concatenate([next(iter(executable.run(feeds).values())) for feeds in calls])


class Joint:
    """Computes scores of all rows of a data set for choices of variants; each branch's variant runs once.

    Args:
        spec: of the package.
        branches: packages by name.
        asked: the data set.
        samples: of the branches that read pictures and texts, by name.
        threads: of a call.
    """

    def __init__(
        self,
        spec: MultimodalSpec,
        branches: Mapping[str, Package],
        asked: Asked,
        samples: Mapping[str, Samples],
        *,
        threads: int = 0,
    ) -> None:
        self._spec, self._branches, self._asked, self._samples = spec, branches, asked, samples
        self._threads = threads
        self._features: dict[tuple[str, str], Array] = {}
        self._picture, self._text = spec.leaf("picture").name, spec.leaf("text").name

    def scores(self, chosen: Mapping[str, str]) -> Array:
        """Scores for a variant of each branch.

        Returns:
            float32: of answers, (rows, answers); of matching, the cosine of each text and each picture,
            (texts, pictures).
        """
        fusion = self._spec.fusion
        leaves = {name: self._leaf(name, chosen[name]) for name in (self._picture, self._text)}
        if fusion is None:
            return _cosines(leaves[self._text], leaves[self._picture])
        feeds = self.fusion_feeds(fusion, leaves)
        names = tuple(str(row) for row in range(len(self._asked)))
        samples = Samples(feeds, None, names)
        return run_variant(self._branches[fusion.name], chosen[fusion.name], samples, threads=self._threads)

    def fusion_feeds(self, fusion: BranchSpec, leaves: Mapping[str, Array]) -> dict[str, Array]:
        """What a fusion takes for all rows, by the features of pictures and texts."""
        rows = {self._picture: self._asked.picture_of, self._text: self._asked.text_of}
        return {name: leaves[source][rows[source]] for name, source in fusion.takes.items()}

    def float_leaves(self) -> dict[str, Array]:
        """Features in FP32."""
        return {name: self._leaf(name, FLOAT) for name in (self._picture, self._text)}

    def accuracy(self, chosen: Mapping[str, str], *, confidence: float = CONFIDENCE, seed: int = 0) -> Accuracy:
        """What a choice costs against all branches in FP32.

        With answers it is top-1; without them the share of rows (or texts) whose first answer (or picture) is FP32's.
        """
        record, float_record = OutputRecord(), OutputRecord()
        scores = self._float_scores if all(name == FLOAT for name in chosen.values()) else self.scores(chosen)
        reference = {"scores": self._float_scores}
        count = len(self._float_scores)
        float_record.add(reference, reference, samples=count, classify=True)
        record.add(reference, {"scores": scores}, samples=count, classify=True)
        labels = self._asked.answers if self._spec.fusion is not None else None
        metric: Metric = "agreement" if labels is None else "top1"
        first = float_record if scores is self._float_scores else record
        return judge(first, float_record, labels, metric=metric, seed=seed, confidence=confidence)

    @cached_property
    def _float_scores(self) -> Array:
        return self.scores({branch.name: FLOAT for branch in self._spec.branches})

    def _leaf(self, name: str, variant: str) -> Array:
        key = (name, variant)
        if key not in self._features:
            package = self._branches[name]
            self._features[key] = run_variant(package, variant, self._samples[name], threads=self._threads)
        return self._features[key]


def joint_of(
    package: Package, spec: MultimodalSpec, branches: Mapping[str, Package], asked: Asked, *, threads: int = 0
) -> Joint:
    """The same for a package's own branches, with the data set as they read it.

    Raises:
        SanderlingError: as of ``picture_samples`` and ``text_samples``.
    """
    picture, text = spec.leaf("picture"), spec.leaf("text")
    manifest = branches[picture.name].manifest
    assert manifest.preprocessing is not None
    assert text.tokenizer is not None
    reader = TextInputs(text.tokenizer, package.file(text.tokenizer.file), branches[text.name].manifest.inputs)
    samples = {
        picture.name: picture_samples(asked, manifest.inputs[0], manifest.preprocessing),
        text.name: text_samples(asked, reader),
    }
    return Joint(spec, branches, asked, samples, threads=threads)


def known_texts(asked: Asked, reader: TextInputs, progress: Progress) -> None:
    """Tell which texts have words that the vocabulary lacks."""
    unknown = {word for text in asked.texts for word in reader.unknown_words(text)}
    if unknown:
        shown = ", ".join(sorted(unknown)[:10])
        reason = f"{len(unknown)} words are not in the vocabulary, such as {shown}"
        progress.event(Event(kind="unknown-words", subject=asked.name, reason=reason))


def calls(feeds: Mapping[str, Feeds], count: int) -> Iterator[dict[str, Feeds]]:
    """Feeds of each call, by branch, from arrays whose first axis counts the calls."""
    for index in range(count):
        yield {branch: {name: array[index] for name, array in named.items()} for branch, named in feeds.items()}


def _cosines(rows: Array, columns: Array) -> Array:
    """Cosine of each row and each column: float32, (rows, columns)."""
    unit = [array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12) for array in (rows, columns)]
    found: Array = (unit[0] @ unit[1].T).astype(np.float32)
    return found
