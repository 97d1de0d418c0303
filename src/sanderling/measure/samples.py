"""Calibration and evaluation data: a folder of pictures or sounds, a CSV that lists them, or an `.npz` of arrays."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sanderling.core.arrays import read_npz
from sanderling.core.errors import DataError, TensorError, first_line
from sanderling.core.progress import Event, Progress
from sanderling.core.tensor import Array, TensorSpec, check_feeds
from sanderling.measure.detection import Objects, read_objects
from sanderling.model.preprocessing import Preprocessing
from sanderling.model.sound import SoundSpec
from sanderling.run.pictures import PICTURE_SUFFIXES, fit_pixels, normalize, read_pixels
from sanderling.run.sounds import SOUND_SUFFIXES, fit_sound, read_wav
from sanderling.run.vision.placing import place

_BROKEN_SHARE_LIMIT = 0.10
_NOTHING_CUT_PX = 0.5
_PATH_COLUMNS = ("path", "file", "image", "filename")
_LABEL_COLUMNS = ("label", "class", "target")


@dataclass(frozen=True)
class Samples:
    """Inputs in memory, and their labels where they have any.

    Attributes:
        inputs: per input name, all samples along the first axis; pictures stay uint8 (N, H, W, C) until used.
        labels: int64, shape (n,), or None.
        objects: boxes and classes on each picture, or None.
        names: of each sample, for messages.
        preprocessing: turns pictures into the model's input; None when ``inputs`` fit as they are.
        whole: inputs without a batch axis of 1: a call takes one sample as it is.
    """

    inputs: dict[str, Array]
    labels: npt.NDArray[np.int64] | None
    names: tuple[str, ...] = field(repr=False)
    preprocessing: Preprocessing | None = None
    whole: frozenset[str] = frozenset()
    objects: Objects | None = None

    def __len__(self) -> int:
        return len(self.names)

    def batches(self, size: int) -> Iterator[dict[str, Array]]:
        """Yield feeds of ``size`` samples, the last one shorter; one by one where an input has no batch axis."""
        size = 1 if self.whole else size
        for start in range(0, len(self), size):
            yield self._feeds(slice(start, start + size))

    def one(self, index: int) -> dict[str, Array]:
        """Feeds of one sample, ready for the model."""
        return self._feeds(slice(index, index + 1))

    def _feeds(self, rows: slice) -> dict[str, Array]:
        feeds = {name: array[rows] for name, array in self.inputs.items()}
        if self.preprocessing is not None:
            return {name: normalize(pixels, self.preprocessing) for name, pixels in feeds.items()}
        return {name: array[0, ...] if name in self.whole else array for name, array in feeds.items()}

    def pick(self, indices: npt.NDArray[np.int64] | Sequence[int]) -> Samples:
        """The samples at ``indices``, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return Samples(
            {name: array[chosen] for name, array in self.inputs.items()},
            None if self.labels is None else self.labels[chosen],
            tuple(self.names[index] for index in chosen),
            self.preprocessing,
            self.whole,
            None if self.objects is None else self.objects.pick(chosen),
        )

    @property
    def labelled(self) -> bool:
        """Whether it is known what is right: a class or the objects of each sample."""
        return self.labels is not None or self.objects is not None


def inputs_without_batch(inputs: Sequence[TensorSpec]) -> frozenset[str]:
    """Names of the inputs whose first axis is neither 1 nor dynamic: one call takes one sample of them."""
    return frozenset(spec.name for spec in inputs if not spec.shape or spec.shape[0] not in (1, *_dynamic(spec)))


def _dynamic(spec: TensorSpec) -> tuple[int | str, ...]:
    return tuple(spec.shape[axis] for axis in spec.dynamic_axes if axis == 0)


@dataclass(frozen=True)
class SampleReader:
    """Turns files into samples that fit a model.

    Attributes:
        inputs: the model's inputs.
        preprocessing: for pictures; None when the model takes none.
        label_names: of the classes, to read labels given as words.
        progress: is told about skipped files.
        sound: for recordings; None when the model takes none.
    """

    inputs: tuple[TensorSpec, ...]
    preprocessing: Preprocessing | None
    label_names: tuple[str, ...] | None
    progress: Progress
    sound: SoundSpec | None = None

    def read(self, source: str | Path) -> Samples:
        """Read a folder, a CSV or an ``.npz``.

        Raises:
            DataError: it is missing or empty, at least a tenth of the files are broken, an array does not
                fit, a value is NaN or infinite, or a label is unknown.
            UnavailableError: sounds have another sample rate than the model, and SciPy is not installed.
        """
        path = Path(source)
        if path.is_dir():
            samples = self._read_folder(path)
        elif path.suffix == ".npz" and path.is_file():
            samples = self._read_arrays(path)
        elif path.suffix == ".csv" and path.is_file():
            samples = self._read_csv(path)
        elif path.exists():
            raise DataError(f"{path} is no data: expected {self._expected}")
        else:
            raise DataError(f"{path} does not exist: expected {self._expected}")
        _check_finite(samples, path)
        return samples

    @property
    def _expected(self) -> str:
        return f"a folder of {'pictures' if self.sound is None else 'sounds'}, a .csv or an .npz"

    def _read_folder(self, folder: Path) -> Samples:
        files = _files(folder, PICTURE_SUFFIXES if self.sound is None else SOUND_SUFFIXES)
        if not files and self.sound is None and _files(folder, SOUND_SUFFIXES):
            raise DataError(
                f"{folder} holds sounds, but nothing says how they become the model's input: give --preprocess "
                "sound:RATE with the sample rate that the model was trained with, such as sound:16000"
            )
        return self._read_files(files, self._folder_labels(folder, files), folder)

    def _folder_labels(self, folder: Path, files: list[Path]) -> list[int] | None:
        """Labels from the folders' names when every file lies in one and the names are classes."""
        if not files or any(file.parent.parent != folder for file in files):
            return None
        classes = sorted({file.parent.name for file in files})
        known = set(self.label_names or ())
        if not any(name in known or name.isdecimal() for name in classes):
            reason = "their names are neither class numbers nor in the label names"
            self.progress.event(Event(kind="folder-names-ignored", subject=", ".join(classes), reason=reason))
            return None
        numbers = {name: self._label(name, folder) for name in classes}
        return [numbers[file.parent.name] for file in files]

    def _read_csv(self, path: Path) -> Samples:
        try:
            with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
                rows = list(csv.DictReader(stream))
        except csv.Error as error:
            raise DataError(f"{path} is no readable CSV: {first_line(error)}") from error
        columns = list(rows[0]) if rows else []
        path_column = next((name for name in _PATH_COLUMNS if name in columns), None)
        label_column = next((name for name in _LABEL_COLUMNS if name in columns), None)
        if path_column is None:
            raise DataError(f"{path} has columns {columns}: one of {', '.join(_PATH_COLUMNS)} is needed")
        files = [path.parent / (row[path_column] or "") for row in rows]
        labels = [self._label(row[label_column] or "", path) for row in rows] if label_column else None
        return self._read_files(files, labels, path)

    def _read_files(self, files: list[Path], labels: list[int] | None, source: Path) -> Samples:
        """Read pictures or sounds; broken ones are left out as long as they are few."""
        longer_s: list[float] = []
        if self.sound is None:
            kind, (rows, take) = "picture", self._pictures(files, source)
        else:
            kind, (rows, take) = "sound", self._sounds(files, source, self.sound, longer_s)
        kept: list[int] = []
        for index, file in enumerate(files):
            try:
                rows[len(kept)] = take(file)
                kept.append(index)
            except DataError as error:
                self.progress.event(Event(kind=f"{kind}-skipped", subject=file.name, reason=str(error)))
            self.progress.advance()
        broken = len(files) - len(kept)
        if broken >= _BROKEN_SHARE_LIMIT * len(files):
            raise DataError(f"{broken} of {len(files)} {kind}s in {source} are broken: less than 10 % may be")
        if self.sound is not None and longer_s:
            reason = f"up to {max(longer_s):.2f} s: the model hears {self.sound.seconds:.2f} s, and gets their middle"
            self.progress.event(Event(kind="sounds-cut", subject=f"{len(longer_s)} of {len(files)}", reason=reason))
        names = tuple(files[index].name for index in kept)
        chosen = None if labels is None else np.asarray([labels[index] for index in kept], np.int64)
        return Samples({self.inputs[0].name: rows[: len(kept)]}, chosen, names, self.preprocessing)

    def _pictures(self, files: list[Path], source: Path) -> tuple[Array, Callable[[Path], Array]]:
        """Room for all pictures, and what reads one."""
        if not files:
            raise DataError(f"{source} holds no pictures: expected files such as {', '.join(PICTURE_SUFFIXES[:4])}")
        if self.preprocessing is None:
            raise DataError(
                f"{source} holds pictures, but nothing says how they become the model's input: "
                "give --preprocess imagenet, or its JSON"
            )
        preprocessing = self.preprocessing
        size = (preprocessing.height, preprocessing.width, preprocessing.channels)
        return np.empty((len(files), *size), np.uint8), lambda file: read_pixels(file, preprocessing)

    def _sounds(
        self, files: list[Path], source: Path, spec: SoundSpec, longer_s: list[float]
    ) -> tuple[Array, Callable[[Path], Array]]:
        """Room for all sounds, and what reads one and notes it where it is longer than what the model hears."""
        if not files:
            raise DataError(f"{source} holds no sounds: expected files such as {', '.join(SOUND_SUFFIXES)}")
        shape = tuple(size for size in self.inputs[0].shape[1:] if isinstance(size, int))

        def take(file: Path) -> Array:
            sound = read_wav(file)
            if sound.seconds > spec.seconds:
                longer_s.append(sound.seconds)
            return fit_sound(sound, spec).reshape(shape)

        return np.empty((len(files), *shape), np.float32), take

    def take(self, arrays: Mapping[str, Array], path: Path) -> Samples:
        """The same of arrays that were read from ``path``.

        Raises:
            DataError: an array does not fit, or a value is NaN or infinite.
        """
        samples = self._taken(dict(arrays), path)
        _check_finite(samples, path)
        return samples

    def _read_arrays(self, path: Path) -> Samples:
        return self._taken(read_npz(path), path)

    def _taken(self, arrays: dict[str, Array], path: Path) -> Samples:
        labels = self._pop_labels(arrays)
        truth = self._pop_objects(arrays)
        counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
        if len(counts) != 1 or 0 in counts:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "no arrays"
            raise DataError(f"{path} holds {shapes}: every array needs the same number of rows, at least 1")
        count = counts.pop()
        names = tuple(f"row {row}" for row in range(count))
        numbers = self._numbers(labels, count, path)
        objects = self._objects(truth, count, path)
        if self.preprocessing is not None and self._holds_pictures(arrays):
            name, pictures = next(iter(arrays.items()))
            if objects is not None:
                objects = _placed(objects, pictures, self.preprocessing, path)
            pixels = np.stack([fit_pixels(picture, self.preprocessing) for picture in pictures])
            return Samples({name: pixels}, numbers, names, self.preprocessing, objects=objects)
        samples = Samples(arrays, numbers, names, whole=inputs_without_batch(self.inputs), objects=objects)
        try:
            check_feeds(samples.one(0), self.inputs)
        except TensorError as error:
            raise DataError(f"{path}: {error}") from error
        return samples

    def _pop_labels(self, arrays: dict[str, Array]) -> Array | None:
        """Take ``labels``, or ``label`` as training batches call it, unless the model has an input of that name."""
        inputs = {spec.name for spec in self.inputs}
        name = next((name for name in ("labels", "label") if name in arrays and name not in inputs), None)
        return arrays.pop(name) if name is not None else None

    def _pop_objects(self, arrays: dict[str, Array]) -> tuple[Array, Array] | None:
        """Take ``boxes`` and ``classes`` out of the arrays, unless they are inputs of the model."""
        given = {"boxes", "classes"} <= arrays.keys() - {spec.name for spec in self.inputs}
        return (arrays.pop("boxes"), arrays.pop("classes")) if given else None

    def _objects(self, truth: tuple[Array, Array] | None, count: int, path: Path) -> Objects | None:
        try:
            return None if truth is None else read_objects(*truth, count=count)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error

    def _holds_pictures(self, arrays: dict[str, Array]) -> bool:
        """Whether the arrays are uint8 pictures that stand for the model's one float input."""
        named = list(arrays) == [spec.name for spec in self.inputs]
        return named and all(array.dtype == np.uint8 for array in arrays.values())

    def _numbers(self, labels: Array | None, count: int, path: Path) -> npt.NDArray[np.int64] | None:
        if labels is None:
            return None
        if labels.shape != (count,) or labels.dtype.kind not in "iu":
            raise DataError(
                f"{path}: labels are {labels.dtype}{list(labels.shape)}: expected integers of shape ({count},)"
            )
        return labels.astype(np.int64)

    def _label(self, text: str, source: Path) -> int:
        if self.label_names and text in self.label_names:
            return self.label_names.index(text)
        if text.strip().isdecimal():
            return int(text)
        raise DataError(f"{source}: label '{text}' is no class number and not in the label names; give --labels FILE")


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """Files of these kinds below a folder, sorted; hidden ones are left out."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in suffixes and file.is_file() and not file.name.startswith(".")
    )


def check_labels(samples: Samples, classes: int) -> None:
    """Check that labels are class numbers that the model's output has.

    Raises:
        DataError: a label is outside 0 … classes − 1.
    """
    if samples.labels is None:
        return
    low, high = int(samples.labels.min()), int(samples.labels.max())
    if low < 0 or high >= classes:
        raise DataError(f"labels go from {low} to {high}: the model's output has {classes} classes (0…{classes - 1})")


def _placed(objects: Objects, pictures: Array, preprocessing: Preprocessing, path: Path) -> Objects:
    """Boxes in pixels of the pictures as such in pixels of the model's input.

    Raises:
        DataError: the preprocessing cuts off parts of the pictures, and objects with them.
    """
    height, width = pictures.shape[1:3]
    try:
        placement = place(preprocessing, width, height)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    corners = placement.to_model(np.array([[0, 0, width, height]], np.float64))[0]
    over = np.array([-corners[0], -corners[1], corners[2] - preprocessing.width, corners[3] - preprocessing.height])
    if over.max() > _NOTHING_CUT_PX:
        raise DataError(
            f'{path} holds boxes, and --preprocess cuts pictures {list(pictures.shape)}: give "resize": "letterbox" '
            'or "stretch", which keep all of them'
        )
    if (width, height) == (preprocessing.width, preprocessing.height):
        return objects
    boxes = placement.to_model(objects.boxes.reshape(-1, 4)).astype(np.float64)
    return Objects(boxes.reshape(objects.boxes.shape), objects.classes)


def _check_finite(samples: Samples, path: Path) -> None:
    for name, array in samples.inputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            row = int(np.argwhere(~np.isfinite(array))[0][0])
            raise DataError(f"{path}: '{name}' has NaN or infinite values, first in {samples.names[row]}; remove them")
