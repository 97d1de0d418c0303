import numpy as np
import pytest

from sanderling.core.errors import DataError
from sanderling.learn.data import from_arrays, read_data
from sanderling.model.preprocessing import Preprocessing
from tests.learning_tasks import dataset


@pytest.fixture
def task_of(new_trainer):
    trainer = new_trainer()
    return trainer.spec, trainer.task.package.manifest


def test_arrays_are_read_with_either_name_of_the_labels(task_of, tmp_path, recorder):
    data = dataset(30)
    np.savez(tmp_path / "a.npz", **data)
    np.savez(tmp_path / "b.npz", x=data["x"], labels=data["label"].astype(np.uint8))

    first, second = (read_data(*task_of, tmp_path / name, recorder) for name in ("a.npz", "b.npz"))

    assert len(first) == 30
    assert first.sha256 == second.sha256
    batch = first.batch(np.array([4, 2]))
    assert np.array_equal(batch["x"], data["x"][[4, 2]])
    assert batch["label"].tolist() == [1, 2]


def test_hash_follows_inputs_labels_and_order(task_of):
    data = dataset(12)
    hashes = {
        from_arrays(task_of[0], each).sha256
        for each in (
            data,
            {**data, "label": np.roll(data["label"], 1)},
            {**data, "x": data["x"] + np.float32(1e-6)},
            {name: array[::-1] for name, array in data.items()},
        )
    }

    assert len(hashes) == 4


def test_class_without_a_sample_is_an_event(task_of, recorder):
    data = dataset(12)
    kept = data["label"] != 1

    from_arrays(task_of[0], {name: array[kept] for name, array in data.items()}, recorder)

    event = next(event for event in recorder.events if event.kind == "class-without-samples")
    assert event.subject == "1"
    assert "no sample of 1 of 3 classes" in event.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"label": None}, "has no array 'label': it holds x"),
        ({"label": np.array([0, 1, 2, 9])}, "label 9 is out of range: the task has 3 classes (0…2)"),
        ({"label": np.zeros(3, np.int64)}, "every array needs the same number of rows"),
        ({"label": np.zeros(4)}, "takes class numbers"),
        ({"x": np.full((4, 6), np.nan, np.float32)}, "'x' has NaN or infinite values, first in row 0"),
        ({"x": np.zeros((4, 7), np.float32)}, "axis 1 must be 6"),
        ({"z": np.zeros(4, np.float32)}, "unknown input ['z']"),
        ({"x": np.zeros((0, 6), np.float32), "label": np.zeros(0, np.int64)}, "at least 1"),
    ],
)
def test_data_that_does_not_fit_is_refused(task_of, tmp_path, change, says):
    arrays = {name: array for name, array in {**dataset(4), **change}.items() if array is not None}
    np.savez(tmp_path / "data.npz", **arrays)

    with pytest.raises(DataError) as refused:
        read_data(*task_of, tmp_path / "data.npz")
    assert says in str(refused.value)


def test_missing_data_is_refused(task_of, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_data(*task_of, tmp_path / "none.npz")


def test_folder_that_the_task_cannot_read_is_told_in_words_of_this_command(task_of, tmp_path):
    (tmp_path / "apple").mkdir()
    (tmp_path / "apple" / "a.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"prepare the task with --preprocess"):
        read_data(*task_of, tmp_path)


def test_folders_of_unknown_names_are_told_which_names_are_known(task_of, tmp_path):
    from PIL import Image

    (tmp_path / "apple").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "apple" / "a.png")
    spec, manifest = task_of
    given = Preprocessing(height=8, width=8, resize="stretch")
    with pytest.raises(DataError, match=r"a name that the task knows \(bee, cat, …; prepare it with --labels"):
        read_data(spec, manifest.model_copy(update={"preprocessing": given, "labels": ("bee", "cat")}), tmp_path)
