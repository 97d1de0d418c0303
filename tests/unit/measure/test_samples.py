from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sanderling.core.errors import DataError
from sanderling.core.progress import Recorder, Silent
from sanderling.core.tensor import TensorSpec, check_feeds
from sanderling.measure.samples import SampleReader, Samples, check_labels, inputs_without_batch
from sanderling.model.preprocessing import Preprocessing
from sanderling.model.sound import SoundSpec
from tests.sounds import write_tone

IMAGE = TensorSpec(name="image", dtype="float32", shape=("N", 3, 8, 8))
PREPROCESSING = Preprocessing(width=8, height=8, resize="none")
GRAY = TensorSpec(name="image", dtype="float32", shape=("N", 1, 8, 8))
GRAY_PREPROCESSING = Preprocessing(width=8, height=8, resize="none", color="gray", mean=(0,), std=(1,))
NAMES = ("cat", "dog", "newt")


def reader(
    *inputs: TensorSpec,
    preprocessing: Preprocessing | None = PREPROCESSING,
    names: tuple[str, ...] | None = None,
    recorder: Recorder | None = None,
) -> SampleReader:
    return SampleReader(inputs or (IMAGE,), preprocessing, names, recorder or Recorder(Silent()))


def put_pictures(folder: Path, *names: str) -> Path:
    """Write one 8×8 picture a name; its first red value is its position in ``names``."""
    for shade, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(folder / name)
    return folder


def shades(samples: Samples) -> list[int]:
    return samples.inputs["image"][:, 0, 0, 0].tolist()


def complaint(source: Path, given: SampleReader | None = None) -> str:
    with pytest.raises(DataError) as caught:
        (given or reader()).read(source)
    return str(caught.value)


# Folders


def test_folder_of_pictures_is_read_in_the_order_of_its_names(tmp_path):
    samples = reader().read(put_pictures(tmp_path, "b.png", "a.png", "deep/er/c.PNG"))
    assert samples.names == ("a.png", "b.png", "c.PNG")
    assert shades(samples) == [1, 0, 2]
    assert samples.labels is None
    assert samples.inputs["image"].dtype == np.uint8


def test_pictures_become_feeds_that_fit_the_model(tmp_path):
    samples = reader().read(put_pictures(tmp_path, "a.png", "b.png", "c.png"))
    check_feeds(samples.one(2), (IMAGE,))
    assert samples.one(2)["image"][0, 0, 0, 0] == pytest.approx(2 / 255)
    assert [len(feeds["image"]) for feeds in samples.batches(2)] == [2, 1]


def test_hidden_files_and_other_files_are_left_out(tmp_path):
    put_pictures(tmp_path, "a.png", "._a.png")
    (tmp_path / "notes.txt").write_text("x")
    assert reader().read(tmp_path).names == ("a.png",)


def test_folders_with_class_numbers_label_their_pictures(tmp_path):
    samples = reader().read(put_pictures(tmp_path, "0/a.png", "2/b.png", "10/c.png"))
    assert dict(zip(samples.names, samples.labels.tolist(), strict=True)) == {"a.png": 0, "b.png": 2, "c.png": 10}
    assert samples.labels.dtype == np.int64


def test_folders_with_class_names_label_their_pictures(tmp_path):
    samples = reader(names=NAMES).read(put_pictures(tmp_path, "newt/a.png", "cat/b.png"))
    assert dict(zip(samples.names, samples.labels.tolist(), strict=True)) == {"a.png": 2, "b.png": 0}


def test_folder_name_that_is_no_class_among_classes_is_an_error(tmp_path):
    message = complaint(put_pictures(tmp_path, "cat/a.png", "unicorn/b.png"), reader(names=NAMES))
    assert "label 'unicorn'" in message
    assert "--labels" in message


def test_folder_names_that_are_no_classes_give_no_labels_and_are_told(tmp_path):
    recorder = Recorder(Silent())
    samples = reader(recorder=recorder).read(put_pictures(tmp_path, "monday/a.png", "tuesday/b.png"))
    assert samples.labels is None
    assert [(event.kind, event.subject) for event in recorder.events] == [("folder-names-ignored", "monday, tuesday")]


def test_picture_outside_the_class_folders_means_no_labels(tmp_path):
    assert reader().read(put_pictures(tmp_path, "0/a.png", "b.png")).labels is None


def test_empty_folder_is_an_error(tmp_path):
    assert "holds no pictures" in complaint(tmp_path)


def test_missing_source_is_an_error(tmp_path):
    assert "does not exist" in complaint(tmp_path / "nowhere")


def test_file_of_another_kind_is_an_error(tmp_path):
    (tmp_path / "data.txt").write_text("x")
    assert "expected a folder of pictures, a .csv or an .npz" in complaint(tmp_path / "data.txt")


def test_pictures_for_a_model_that_says_nothing_about_them_are_an_error(tmp_path):
    assert "--preprocess" in complaint(put_pictures(tmp_path, "a.png"), reader(preprocessing=None))


# Sounds

WAVEFORM = TensorSpec(name="sound", dtype="float32", shape=("N", 800))
HEARD = SoundSpec(sample_rate_hz=16_000, length=800)


def sound_reader(recorder: Recorder | None = None, shape: tuple[int | str, ...] = ("N", 800)) -> SampleReader:
    spec = WAVEFORM.model_copy(update={"shape": shape})
    return SampleReader((spec,), None, NAMES, recorder or Recorder(Silent()), HEARD)


def test_folder_of_sounds_is_read_with_the_labels_of_its_folders(tmp_path):
    for name in ("newt/b.wav", "cat/a.WAV", "cat/._a.wav"):
        write_tone(tmp_path / name, frames=800)
    samples = sound_reader().read(tmp_path)
    assert samples.names == ("a.WAV", "b.wav")
    assert samples.labels.tolist() == [0, 2]
    assert samples.inputs["sound"].dtype == np.float32
    check_feeds(samples.one(1), (WAVEFORM,))


def test_sounds_fit_an_input_with_a_channel_axis(tmp_path):
    write_tone(tmp_path / "a.wav", frames=400)
    assert sound_reader(shape=("N", 1, 800)).read(tmp_path).inputs["sound"].shape == (1, 1, 800)


def test_csv_lists_sounds_too(tmp_path):
    write_tone(tmp_path / "a.wav", frames=800)
    (tmp_path / "list.csv").write_text("path,label\na.wav,dog\n")
    assert sound_reader().read(tmp_path / "list.csv").labels.tolist() == [1]


def test_sounds_that_are_longer_than_the_model_hears_are_told_of_once(tmp_path):
    recorder = Recorder(Silent())
    for name, frames in (("a", 1600), ("b", 900), ("c", 800)):
        write_tone(tmp_path / f"{name}.wav", frames=frames)
    assert len(sound_reader(recorder).read(tmp_path)) == 3
    assert [(event.kind, event.subject) for event in recorder.events] == [("sounds-cut", "2 of 3")]
    assert "0.10 s: the model hears 0.05 s" in recorder.events[0].reason


def test_broken_sounds_are_left_out_while_they_are_few(tmp_path):
    recorder = Recorder(Silent())
    for index in range(11):
        write_tone(tmp_path / f"{index:02d}.wav", frames=800)
    (tmp_path / "03.wav").write_bytes(b"RIFF")
    assert len(sound_reader(recorder).read(tmp_path)) == 10
    assert [event.kind for event in recorder.events] == ["sound-skipped"]
    (tmp_path / "04.wav").write_bytes(b"")
    with pytest.raises(DataError, match="2 of 11 sounds"):
        sound_reader().read(tmp_path)


def test_folder_without_sounds_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds no sounds"):
        sound_reader().read(put_pictures(tmp_path, "a.png"))


def test_sounds_for_a_model_that_says_nothing_about_them_are_an_error(tmp_path):
    write_tone(tmp_path / "cat" / "a.wav")
    assert "--preprocess sound:RATE" in complaint(tmp_path)


# Broken pictures


def put_one_broken(folder: Path, count: int) -> Path:
    """``count`` pictures, one in each class folder, the second of them broken."""
    put_pictures(folder, *(f"{index}/{index:02}.png" for index in range(count)))
    (folder / "1" / "01.png").write_bytes(b"broken")
    return folder


def test_broken_picture_is_skipped_and_told(tmp_path):
    recorder = Recorder(Silent())
    samples = reader(recorder=recorder).read(put_one_broken(tmp_path, 11))
    assert len(samples) == 10
    assert [(event.kind, event.subject) for event in recorder.events] == [("picture-skipped", "01.png")]
    assert "not a readable picture" in recorder.events[0].reason


def test_labels_stay_with_their_pictures_when_one_is_skipped(tmp_path):
    samples = reader().read(put_one_broken(tmp_path, 11))
    assert sorted(samples.labels.tolist()) == [0, *range(2, 11)]
    assert shades(samples) == samples.labels.tolist()
    assert [int(name[:2]) for name in samples.names] == samples.labels.tolist()


def test_tenth_of_broken_pictures_is_an_error(tmp_path):
    assert "1 of 10 pictures" in complaint(put_one_broken(tmp_path, 10))


def test_picture_of_the_wrong_size_counts_as_broken(tmp_path):
    Image.new("RGB", (9, 8)).save(tmp_path / "a.png")
    assert "1 of 1 pictures" in complaint(tmp_path)


# CSV


def write_csv(folder: Path, text: str, *, encoding: str = "utf-8") -> Path:
    put_pictures(folder, "pictures/a.png", "pictures/b.png")
    (folder / "list.csv").write_text(text, encoding=encoding)
    return folder / "list.csv"


def test_csv_paths_are_relative_to_the_csv(tmp_path, monkeypatch):
    source = write_csv(tmp_path, "path\npictures/b.png\npictures/a.png\n")
    monkeypatch.chdir("/")
    samples = reader().read(source)
    assert samples.names == ("b.png", "a.png")
    assert shades(samples) == [1, 0]
    assert samples.labels is None


@pytest.mark.parametrize("columns", ["path,label", "file,class", "image,target", "filename,label"])
def test_csv_labels_are_class_numbers_or_names(tmp_path, columns):
    source = write_csv(tmp_path, f"{columns}\npictures/a.png,newt\npictures/b.png,1\n")
    assert reader(names=NAMES).read(source).labels.tolist() == [2, 1]


def test_csv_with_a_byte_order_mark_is_read(tmp_path):
    # Excel's "CSV UTF-8" begins with one.
    source = write_csv(tmp_path, "path,label\npictures/a.png,0\n", encoding="utf-8-sig")
    assert reader().read(source).labels.tolist() == [0]


@pytest.mark.parametrize("label", ["unicorn", "", "1.5", "-1"])
def test_csv_label_that_is_no_class_is_told(tmp_path, label):
    source = write_csv(tmp_path, f"path,label\npictures/a.png,{label}\n")
    assert f"label '{label}'" in complaint(source, reader(names=NAMES))


def test_csv_without_a_column_of_paths_is_told_with_its_columns(tmp_path):
    message = complaint(write_csv(tmp_path, "name,label\npictures/a.png,0\n"))
    assert "['name', 'label']" in message
    assert "path, file, image, filename" in message


@pytest.mark.parametrize("text", ["", "path,label\n", "path\n" + "x" * 200_000], ids=["empty", "header", "endless"])
def test_csv_without_usable_rows_is_told(tmp_path, text):
    assert "list.csv" in complaint(write_csv(tmp_path, text))


def test_csv_that_lists_missing_pictures_is_told(tmp_path):
    assert "1 of 2 pictures" in complaint(write_csv(tmp_path, "path\npictures/a.png\npictures/gone.png\n"))


# Arrays


def put_arrays(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_label_is_taken_for_labels_unless_the_model_reads_it(tmp_path):
    image, label = floats(2, 3, 8, 8), np.array([1, 0])
    assert reader().read(put_arrays(tmp_path, image=image, label=label)).labels.tolist() == [1, 0]

    own = TensorSpec(name="label", dtype="int64", shape=("N",))
    samples = reader(IMAGE, own).read(put_arrays(tmp_path, image=image, label=label, labels=np.array([3, 2])))
    assert samples.labels.tolist() == [3, 2]
    assert samples.inputs["label"].tolist() == [1, 0]


def test_float_arrays_are_used_as_they_are(tmp_path):
    samples = reader().read(put_arrays(tmp_path, image=floats(5, 3, 8, 8), labels=np.array([3, 1, 0, 2, 1])))
    assert len(samples) == 5
    assert samples.labels.tolist() == [3, 1, 0, 2, 1]
    np.testing.assert_array_equal(samples.one(3)["image"], floats(5, 3, 8, 8)[3:4])
    assert [len(feeds["image"]) for feeds in samples.batches(2)] == [2, 2, 1]


def test_pictures_in_an_array_are_preprocessed(tmp_path):
    pictures = np.full((4, 16, 16, 3), 51, np.uint8)
    fitting = Preprocessing(width=8, height=8, resize_to=10)
    samples = reader(preprocessing=fitting).read(put_arrays(tmp_path, image=pictures, labels=np.arange(4)))
    check_feeds(samples.one(0), (IMAGE,))
    np.testing.assert_allclose(samples.one(0)["image"], 0.2, atol=1e-6)
    assert samples.labels.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("shape", [(4, 8, 8), (4, 8, 8, 3)], ids=["grey", "colour"])
def test_pictures_in_an_array_become_gray_for_a_gray_model(tmp_path, shape):
    given = reader(GRAY, preprocessing=GRAY_PREPROCESSING)
    samples = given.read(put_arrays(tmp_path, image=np.full(shape, 51, np.uint8)))
    check_feeds(samples.one(0), (GRAY,))
    np.testing.assert_allclose(samples.one(0)["image"], 0.2, atol=1e-6)


def test_pictures_in_an_array_need_to_be_told_how_they_are_prepared(tmp_path):
    source = put_arrays(tmp_path, image=np.zeros((4, 3, 8, 8), np.uint8))
    assert "dtype uint8: expected float32" in complaint(source, reader(preprocessing=None))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite_is_told_with_its_row(tmp_path, bad):
    values = floats(5, 3, 8, 8)
    values[3, 1, 2, 2] = bad
    message = complaint(put_arrays(tmp_path, image=values))
    assert "'image' has NaN or infinite values" in message
    assert "row 3" in message


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"image": floats(2, 3, 8, 9)}, "axis 3 must be 8"),
        ({"image": floats(2, 3, 8, 8).astype(np.float64)}, "expected float32"),
        ({"picture": floats(2, 3, 8, 8)}, "unknown input ['picture']"),
        ({"image": floats(2, 3, 8, 8), "extra": floats(2, 1)}, "unknown input ['extra']"),
        ({"image": floats(2, 3, 8, 8), "extra": floats(3, 1)}, "same number of rows"),
        ({"image": floats(0, 3, 8, 8)}, "at least 1"),
        ({"image": np.float32(1)}, "image []"),
        ({"labels": np.zeros(3, np.int64)}, "no arrays"),
    ],
)
def test_arrays_that_do_not_fit_are_told(tmp_path, arrays, message):
    assert message in complaint(put_arrays(tmp_path, **arrays), reader(preprocessing=None))


@pytest.mark.parametrize(
    "labels", [np.zeros(4, np.int64), np.zeros((5, 1), np.int64), np.zeros(5), np.array(["a"] * 5)]
)
def test_labels_of_another_form_are_told(tmp_path, labels):
    source = put_arrays(tmp_path, image=floats(5, 3, 8, 8), labels=labels)
    assert "expected integers of shape (5,)" in complaint(source)


def test_pickled_objects_are_never_loaded(tmp_path):
    source = put_arrays(tmp_path, image=np.array([{"a": 1}], dtype=object))
    assert "plain arrays" in complaint(source)


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "npy", "zip of text"])
def test_npz_that_holds_no_arrays_is_told(tmp_path, kind):
    source = put_arrays(tmp_path, image=floats(5, 3, 8, 8))
    if kind == "zip of text":
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("readme.txt", "hello")
    elif kind == "npy":
        with source.open("wb") as stream:
            np.save(stream, floats(5, 3, 8, 8))
    else:
        source.write_bytes({"text": b"hello", "empty": b"", "cut": source.read_bytes()[:500]}[kind])
    assert "data.npz" in complaint(source)


# Boxes


def square(count: int, **changes: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays of one box a picture, with classes 0 … count − 1, and none beside it."""
    boxes = np.tile(np.float32([[1, 1, 5, 5], [0, 0, 0, 0]]), (count, 1, 1))
    return {"boxes": boxes, "classes": np.stack([np.arange(count), np.full(count, -1)], axis=1), **changes}


def test_boxes_stay_with_their_pictures(tmp_path):
    source = put_arrays(tmp_path, image=np.zeros((4, 8, 8, 3), np.uint8), **square(4))
    picked = reader().read(source).pick([2, 0])
    assert picked.labelled
    assert picked.labels is None
    assert picked.objects.classes.tolist() == [[2, -1], [0, -1]]
    assert picked.objects.boxes[0, 0].tolist() == [1, 1, 5, 5]


def test_boxes_go_with_float_inputs_too(tmp_path):
    samples = reader(preprocessing=None).read(put_arrays(tmp_path, image=floats(4, 3, 8, 8), **square(4)))
    assert len(samples.objects) == 4


def test_samples_without_boxes_and_labels_are_not_labelled(tmp_path):
    assert not reader().read(put_arrays(tmp_path, image=floats(4, 3, 8, 8))).labelled


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": np.zeros((4, 3), np.int64)}, "expected boxes (4, m, 4)"),
        ({"boxes": np.zeros((4, 2, 4), np.float32)}, "box 0 of picture 0"),
        ({"classes": np.full((4, 2), -1)}, "no picture has an object"),
    ],
)
def test_boxes_that_cannot_be_used_are_told_with_their_file(tmp_path, changes, message):
    source = put_arrays(tmp_path, image=np.zeros((4, 8, 8, 3), np.uint8), **square(4, **changes))
    told = complaint(source)
    assert str(source) in told
    assert message in told


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"resize": "stretch"}, [0.5, 1, 2.5, 5]),
        ({"resize": "letterbox"}, [0.5, 2.5, 2.5, 4.5]),
        ({"resize": "letterbox", "anchor": "top-left"}, [0.5, 0.5, 2.5, 2.5]),
    ],
)
def test_boxes_go_with_their_pictures_into_the_models_input(tmp_path, how, expected):
    given = reader(preprocessing=Preprocessing(width=8, height=8, **how))
    objects = given.read(put_arrays(tmp_path, image=np.zeros((4, 8, 16, 3), np.uint8), **square(4))).objects
    np.testing.assert_allclose(objects.boxes[0, 0], expected)
    assert objects.classes.tolist() == square(4)["classes"].tolist()


@pytest.mark.parametrize("size", [(8, 8), (16, 16), (8, 20)])
def test_pictures_with_boxes_may_not_be_cropped(tmp_path, size):
    given = reader(preprocessing=Preprocessing(width=8, height=8, resize_to=10))
    told = complaint(put_arrays(tmp_path, image=np.zeros((4, *size, 3), np.uint8), **square(4)), given)
    assert f"cuts pictures [4, {size[0]}, {size[1]}, 3]" in told
    assert '"letterbox"' in told
    whole = reader(preprocessing=Preprocessing(width=8, height=8, resize_to=8))
    assert whole.read(put_arrays(tmp_path, image=np.zeros((4, 8, 8, 3), np.uint8), **square(4))).objects is not None


def test_input_named_as_the_boxes_is_an_input(tmp_path):
    inputs = tuple(TensorSpec(name=name, dtype="float32", shape=("N", 3)) for name in ("boxes", "classes"))
    given = reader(*inputs, preprocessing=None)
    samples = given.read(put_arrays(tmp_path, boxes=floats(4, 3), classes=floats(4, 3)))
    assert samples.objects is None
    assert samples.inputs.keys() == {"boxes", "classes"}


# Inputs without a batch axis


def test_input_whose_first_axis_is_no_batch_is_taken_whole(tmp_path):
    vector = TensorSpec(name="x", dtype="float32", shape=(3,))
    samples = reader(vector, preprocessing=None).read(put_arrays(tmp_path, x=floats(5, 3)))
    assert len(samples) == 5
    np.testing.assert_array_equal(samples.one(2)["x"], floats(5, 3)[2])
    assert [feeds["x"].shape for feeds in samples.batches(4)] == [(3,)] * 5


def test_inputs_with_and_without_a_batch_go_together(tmp_path):
    vector = TensorSpec(name="x", dtype="float32", shape=(3,))
    row = TensorSpec(name="y", dtype="float32", shape=(1, 2))
    samples = reader(vector, row, preprocessing=None).read(put_arrays(tmp_path, x=floats(5, 3), y=floats(5, 2)))
    feeds = samples.one(4)
    check_feeds(feeds, (vector, row))
    np.testing.assert_array_equal(feeds["y"], floats(5, 2)[4:5])


def test_scalar_input_takes_one_value_a_sample(tmp_path):
    scalar = TensorSpec(name="x", dtype="float32", shape=())
    samples = reader(scalar, preprocessing=None).read(put_arrays(tmp_path, x=floats(5)))
    check_feeds(samples.one(3), (scalar,))
    assert samples.one(3)["x"] == 3


@pytest.mark.parametrize(
    ("shape", "whole"), [(("N", 3), False), ((1, 3), False), ((), True), ((3,), True), ((4, 3), True), ((2, "T"), True)]
)
def test_only_a_first_axis_of_one_or_without_size_is_a_batch(shape, whole):
    spec = TensorSpec(name="x", dtype="float32", shape=shape)
    assert inputs_without_batch((spec,)) == ({"x"} if whole else set())


# Samples in memory


def test_picked_samples_keep_order_labels_and_names(tmp_path):
    source = put_arrays(tmp_path, image=floats(5, 3, 8, 8), labels=np.arange(5) * 10)
    picked = reader().read(source).pick([4, 0, 2])
    assert picked.names == ("row 4", "row 0", "row 2")
    assert picked.labels.tolist() == [40, 0, 20]
    np.testing.assert_array_equal(picked.one(0)["image"][0], floats(5, 3, 8, 8)[4])


def labelled(*labels: int) -> Samples:
    return Samples({"x": floats(len(labels), 1)}, np.array(labels, np.int64), tuple(map(str, labels)))


def test_labels_inside_the_classes_pass():
    check_labels(labelled(0, 3, 2), 4)


@pytest.mark.parametrize(("labels", "low", "high"), [((0, 4), 0, 4), ((-1, 2), -1, 2)])
def test_labels_outside_the_classes_are_told_with_both_ranges(labels, low, high):
    with pytest.raises(DataError, match=rf"labels go from {low} to {high}: .* 4 classes \(0…3\)"):
        check_labels(labelled(*labels), 4)


def test_samples_without_labels_are_not_checked():
    check_labels(Samples({"x": floats(1, 1)}, None, ("a",)), 0)
