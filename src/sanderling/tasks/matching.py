"""Find pictures by a text, with a model of two towers, and keep their features for the next search."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from sanderling.core.arrays import read_npz, write_npz
from sanderling.core.closing import Closing
from sanderling.core.errors import DataError, SanderlingError, first_line
from sanderling.core.files import cache_folder, replacing
from sanderling.core.progress import Event, Progress, Silent
from sanderling.core.tensor import Array
from sanderling.model.manifest import Manifest
from sanderling.model.multimodal import MATCHING, MultimodalSpec
from sanderling.model.package import Package
from sanderling.run.branches import Branches
from sanderling.run.features import Content
from sanderling.run.pictures import PICTURE_SUFFIXES
from sanderling.tasks.multimodal import open_task

_TOGETHER = 32  # pictures that are decoded before their features are asked for
_INDEX_LIMIT_BYTES = 256 << 20
_LEAST_NORM = 1e-12


class Match(BaseModel):
    """A picture that was found.

    Attributes:
        cosine: of its features and the text's, in [-1, 1].
        score: what the model makes of it: its share among the pictures, or its own probability; None where the model
            says no such thing.
    """

    model_config = ConfigDict(frozen=True)

    file: str
    cosine: float
    score: float | None = None


@dataclass(frozen=True)
class Library:
    """Pictures with their features.

    Attributes:
        files: of the pictures that could be read.
        features: float32, shape (pictures, width), each of length 1.
        computed: how many were computed now; the others were known.
        skipped: files that are no readable pictures.
    """

    files: tuple[Path, ...]
    features: Array
    computed: int
    skipped: int


class Matcher(Closing):
    """Finds pictures by texts. Close it, or use it in a ``with`` block.

    Features of pictures are kept in ``$SANDERLING_CACHE/features`` by the model's and the pictures' own bytes.

    Args:
        path: package folder, or a zip of one.
        keep: features on the disk.
        options: of ``sanderling.run.branches.Branches``.

    Raises:
        OptionError: the package matches no pictures with texts.
    """

    def __init__(self, path: str | Path | Package, *, keep: bool = True, **options: Any) -> None:  # noqa: ANN401
        self.branches, self._reading = open_task(path, MATCHING, options)
        spec = self.branches.spec
        self._picture, self._text = spec.leaf("picture").name, spec.leaf("text").name
        self._index = _index_file(self.branches) if keep else None

    @property
    def manifest(self) -> Manifest:
        """Of the package."""
        return self.branches.package.manifest

    def read(self, folder: Path, progress: Progress | None = None) -> Library:
        """The features of all pictures in a folder and below it.

        Args:
            folder: of pictures.
            progress: told about each picture, and about those that are skipped.

        Raises:
            DataError: it is no folder, or has no readable picture.
        """
        progress = progress or Silent()
        files = list_pictures(folder)
        contents = [(file, self._content(file, progress)) for file in files]
        known = self._read_index(progress)
        missing = {
            content.digest: (file, content) for file, content in contents if content and content.digest not in known
        }
        progress.stage("read pictures", len(missing))
        computed = dict(self._compute(list(missing.values()), progress))
        if computed and self._index is not None:
            self._write_index(known | computed)
        known |= computed
        found = [(file, known[content.digest]) for file, content in contents if content and content.digest in known]
        if not found:
            raise DataError(f"{folder} has {len(files)} files with a picture's name, and none can be read")
        return Library(
            tuple(file for file, _ in found),
            np.stack([row for _, row in found]),
            len(computed),
            len(files) - len(found),
        )

    def match(self, library: Library, text: str, *, top: int = 5) -> tuple[Match, ...]:
        """The pictures that a text fits best, the best first.

        Raises:
            OptionError: the text is empty or no valid Unicode.
            DataError: it has no word that the model knows.
            ContextError: it is too long.
        """
        outputs = self.branches.features(self._text, [self._reading.text(text)])[0]
        cosines = library.features @ _unit(next(iter(outputs.values()))[0])
        scores = match_scores(cosines, self.branches.spec)
        order = np.argsort(-cosines, kind="stable")[:top]
        return tuple(
            Match(
                file=str(library.files[index]),
                cosine=float(cosines[index]),
                score=None if scores is None else float(scores[index]),
            )
            for index in order
        )

    def unknown_words(self, text: str) -> tuple[str, ...]:
        """Parts of a text that the model's vocabulary lacks."""
        return self._reading.unknown_words(text)

    def close(self) -> None:
        """Close all branches."""
        self.branches.close()

    def _content(self, file: Path, progress: Progress) -> Content | None:
        try:
            return self._reading.picture(file)
        except DataError as error:
            _skip(file, error, progress)
            return None

    def _compute(self, contents: Sequence[tuple[Path, Content]], progress: Progress) -> Iterator[tuple[bytes, Array]]:
        """Features of pictures, some at a time; one that cannot be read is skipped, and the others go on."""
        for start in range(0, len(contents), _TOGETHER):
            together = contents[start : start + _TOGETHER]
            try:
                rows = self.branches.features(self._picture, [content for _, content in together])
            except DataError:
                rows = [self._alone(file, content, progress) for file, content in together]
            for (_, content), row in zip(together, rows, strict=True):
                if row is not None:
                    yield content.digest, _unit(next(iter(row.values()))[0])
            progress.advance(len(together))

    def _alone(self, file: Path, content: Content, progress: Progress) -> Any:  # noqa: ANN401 - outputs or None
        try:
            return self.branches.features(self._picture, [content])[0]
        except DataError as error:
            _skip(file, error, progress)
            return None

    def _read_index(self, progress: Progress) -> dict[bytes, Array]:
        if self._index is None or not self._index.is_file():
            return {}
        try:
            arrays = read_npz(self._index)
            digests, features = arrays["digests"], arrays["features"]
            if digests.shape != (len(features), 32) or digests.dtype != np.uint8 or not np.isfinite(features).all():
                raise DataError(f"digests {digests.shape} and features {features.shape} do not fit")
        except (SanderlingError, KeyError) as error:
            reason = f"{first_line(error)}; all features are computed again"
            progress.event(Event(kind="index-unreadable", subject=self._index.name, reason=reason))
            return {}
        return {bytes(digest): row for digest, row in zip(digests, features.astype(np.float32), strict=True)}

    def _write_index(self, known: dict[bytes, Array]) -> None:
        """Keep the newest features, as many as the limit allows."""
        assert self._index is not None
        width = len(next(iter(known.values())))
        newest = list(known.items())[-max(_INDEX_LIMIT_BYTES // (4 * width + 32), 1) :]
        self._index.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._index) as target:
            digests = np.stack([np.frombuffer(digest, np.uint8) for digest, _ in newest])
            write_npz(target, {"digests": digests, "features": np.stack([row for _, row in newest])})


def list_pictures(folder: Path) -> list[Path]:
    """Files with a picture's name in a folder and below it, in the order of their names.

    Raises:
        DataError: it is no folder, or has none.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder: expected one with pictures")
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in PICTURE_SUFFIXES and file.is_file() and not file.name.startswith(".")
    )
    if not files:
        raise DataError(f"{folder} has no pictures: expected files such as {', '.join(PICTURE_SUFFIXES[:4])}")
    return files


def match_scores(cosines: Array, spec: MultimodalSpec) -> Array | None:
    """What a model makes of cosines: float32, of their shape, in [0, 1]; None where it says nothing."""
    logits = cosines.astype(np.float64) * spec.scale + spec.bias
    if spec.score == "softmax":
        exponentials = np.exp(logits - logits.max())
        return np.asarray(exponentials / exponentials.sum(), np.float32)
    if spec.score == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-logits)), np.float32)
    return None


def _index_file(branches: Branches) -> Path:
    """Named after all that features depend on: the graph's bytes, and how pictures become its input."""
    session = branches.sessions[branches.spec.leaf("picture").name]
    manifest, variant = session.manifest, session.variant
    files = {
        name: entry.sha256 for name, entry in manifest.files.items() if name in (variant.file, variant.external_data)
    }
    assert manifest.preprocessing is not None
    known = json.dumps([files, manifest.preprocessing.model_dump(mode="json"), session.engine], sort_keys=True)
    return cache_folder() / "features" / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.npz"


def _unit(row: Array) -> Array:
    """The row with length 1, float32, shape (width,)."""
    values = row.astype(np.float32)
    return values / np.float32(max(float(np.linalg.norm(values)), _LEAST_NORM))


def _skip(file: Path, error: Exception, progress: Progress) -> None:
    progress.event(Event(kind="picture-skipped", subject=file.name, reason=first_line(error)))
