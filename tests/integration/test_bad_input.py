"""Every bad input ends in one clear line and exit code 2, and leaves nothing behind.

``refused`` (see conftest) holds each command to all of that, and to the same line as one JSON object on stdout.
"""

import json
import os
import pickle
import re
import shutil
import subprocess
import zipfile

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from PIL import Image
from safetensors.torch import save_file

from sanderling.core.errors import PackageError
from sanderling.model.manifest import FileEntry
from sanderling.model.package import Package, write_manifest, write_zip
from tests.integration.conftest import COMMAND, write_samples
from tests.models import chain, conv_classifier, make_model, save, sum_and_difference, tensor

NETS = """
from pathlib import Path

import torch


def small():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 4))


def failing():
    raise RuntimeError("no weights on this shelf")


def number():
    return 7


def undecided():
    class Undecided(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    return Undecided()


def unsteady():
    class Unsteady(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    return Unsteady()


setting = 3
"""
INPUT = ("--input", "x=1,3,8,8")


class Bomb:
    """Runs a command when it is unpickled: it makes a file, so that a test can see whether that happened."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def target(out):
    return ("-o", out / "model.sdl")


@pytest.fixture
def nets(work):
    (work / "nets.py").write_text(NETS)
    return "nets"


@pytest.fixture
def checkpoint(work):
    """Writes a checkpoint for ``nets:small`` with some tensors changed; None removes one."""

    def write(name="weights.safetensors", **changes):
        torch.manual_seed(0)
        shapes = {"0.weight": (4, 3, 3, 3), "0.bias": (4,), "3.weight": (4, 144), "3.bias": (4,)}
        tensors = {key: torch.randn(shape) for key, shape in shapes.items()} | changes
        path = work / name
        save_file({key: value for key, value in tensors.items() if value is not None}, path)
        return path

    return write


@pytest.fixture
def photos(work):
    """Makes a folder of pictures, the first few of them broken."""

    def make(count, broken=0):
        folder = work / "photos"
        folder.mkdir()
        generator = np.random.default_rng(0)
        for index in range(count):
            pixels = generator.integers(0, 256, (12, 12, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{index:02}.png")
        for index in range(broken):
            path = folder / f"{index:02}.png"
            path.write_bytes(path.read_bytes()[:60])
        return folder

    return make


def test_clear_line_goes_to_stderr_and_nothing_to_stdout_without_json(sanderling, target):
    done = sanderling("build", "nothing.onnx", *target)

    assert (done.code, done.stdout) == (2, "")
    assert done.error == "nothing.onnx does not exist: expected an ONNX file"


@pytest.mark.parametrize(
    "arguments",
    [("build", "net.onnx"), ("build", "net.onnx", "-o", "model.sdl", "--repeats", "0"), ("bench", "model.sdl", "--no")],
    ids=["missing", "out of range", "unknown"],
)
def test_json_reports_wrong_usage_too(sanderling, arguments):
    done = sanderling(*arguments, "--json")

    assert done.code == 2
    assert done.answer["error"].keys() == {"type", "message"}


# Model files


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_onnx_is_refused(refused, classifier, target, share):
    data = classifier.read_bytes()
    classifier.write_bytes(data[: int(share * len(data))])

    refused("build", classifier, *target, says=["classifier.onnx", "cut short"])


def test_onnx_cut_anywhere_is_refused_by_inspect(refused_here, classifier):
    data = classifier.read_bytes()
    for length in range(0, len(data) - 1, len(data) // 40):
        classifier.write_bytes(data[:length])
        refused_here("inspect", classifier, says="classifier.onnx")


@pytest.mark.parametrize(
    "content", [b"", b"This is no model.\n", b"{}", b"\x00" * 64, b"version https://git-lfs.github.com/spec/v1\n"]
)
@pytest.mark.parametrize("command", ["build", "inspect"])
def test_file_that_is_no_onnx_is_refused(refused_here, work, target, command, content):
    (work / "net.onnx").write_bytes(content)

    refused_here(command, "net.onnx", *(target if command == "build" else ()), says="net.onnx is not an ONNX file")


def test_text_file_named_onnx_is_refused(refused, work, target):
    (work / "net.onnx").write_text("These are notes about a network.\n")

    refused("build", "net.onnx", *target, says="net.onnx is not an ONNX file")


def test_file_of_another_kind_is_refused_with_the_kinds_there_are(refused_here, work, target):
    (work / "net.h5").write_bytes(b"\x89HDF")

    refused_here("build", "net.h5", *target, says=["net.h5", ".onnx", ".pt2"])


def test_opset_that_is_too_new_is_refused_with_the_newest_there_is(refused, work, target):
    model = conv_classifier()
    model.opset_import[0].version = 99
    save(model, work / "net.onnx")

    refused("build", "net.onnx", *target, says=["opset 99", "at most 2"])


def test_opset_that_is_too_old_is_refused(refused_here, work, target):
    save(chain(["Relu"], opset=6), work / "net.onnx")

    refused_here("build", "net.onnx", *target, says=["opset 6", "at least 7"])


def save_with_external_data(folder):
    onnx.save(conv_classifier(), folder / "net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    return folder / "net.data"


def test_missing_external_data_is_refused_by_its_name(refused, work, target):
    save_with_external_data(work).unlink()

    refused("build", "net.onnx", *target, says=["net.onnx", "external data", "net.data"])


def test_external_data_that_is_too_short_is_refused(refused_here, work, target):
    data = save_with_external_data(work)
    data.write_bytes(data.read_bytes()[:100])

    refused_here("build", "net.onnx", *target, says="net.onnx")


def test_external_data_outside_the_models_folder_is_not_read(refused_here, work, target):
    save_with_external_data(work).rename(work.parent / "net.data")
    model = onnx.load(work / "net.onnx", load_external_data=False)
    for weight in model.graph.initializer:
        next(entry for entry in weight.external_data if entry.key == "location").value = "../net.data"
    save(model, work / "net.onnx")

    refused_here("build", "net.onnx", *target, says=["net.onnx", "external data", "../net.data"])


def test_graph_that_the_checker_rejects_is_refused(refused_here, work, target):
    broken = make_model([helper.make_node("Relu", ["nowhere"], ["y"])], [tensor("x", [1, 4])], [tensor("y", [1, 4])])
    save(broken, work / "net.onnx")

    refused_here("build", "net.onnx", *target, says=["net.onnx", "nowhere"])


def test_operator_that_does_not_exist_is_refused_by_its_name(refused_here, work, target):
    save(chain(["Sigmoidal"]), work / "net.onnx")

    refused_here("build", "net.onnx", *target, says="Sigmoidal")


def test_precision_that_a_quantised_model_cannot_give_is_refused(refused_here, work, built, target):
    shutil.copy(built.path / "model.int8.onnx", work / "int8.onnx")

    says = ["--precision fp16", "int8.onnx", "quantised already"]
    refused_here("build", "int8.onnx", *target, "--precision", "fp16", says=says)


def test_reference_that_does_not_belong_is_refused(refused_here, work, built, classifier, target):
    shutil.copy(built.path / "model.int8.onnx", work / "int8.onnx")
    save(chain(["Relu"]), work / "other.onnx")

    refused_here("build", classifier, *target, "--reference", "other.onnx", says=["--reference", "is a float model"])
    refused_here("build", "int8.onnx", *target, "--reference", "int8.onnx", says=["--reference", "quantised itself"])
    refused_here("build", "int8.onnx", *target, "--reference", "other.onnx", says=["x: float32[1, 4]", "image"])
    refused_here("build", "int8.onnx", *target, "--reference", "none.onnx", says=["none.onnx", "does not exist"])


# Shapes


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("image=1,3,9,9", ["image=1,3,9,9", "float32[N, 3, 8, 8]"]),
        ("image=1,3,8", ["image=1,3,8", "float32[N, 3, 8, 8]"]),
        ("image=1,3,8,8:int64", ["int64", "float32"]),
        ("picture=1,3,8,8", ["picture", "available are image"]),
        ("image=1,3,8,-1", ["image=1,3,8,-1", "expected NAME=1,3,224,224"]),
        ("image=0,3,8,8", ["size 0"]),
        ("image", ["image", "expected NAME=1,3,224,224"]),
        ("image=1,3,8,8:float31", ["float31", "float32"]),
    ],
)
def test_input_that_does_not_fit_the_graph_is_refused(refused_here, classifier, target, given, says):
    refused_here("build", classifier, *target, "--input", given, says=says)


def test_input_with_the_wrong_shape_is_refused(refused, classifier, target):
    refused("build", classifier, *target, "--input", "image=1,3,9,9", says=["image=1,3,9,9", "[N, 3, 8, 8]"])


def test_dynamic_axis_other_than_the_batch_is_refused(refused, classifier, target):
    refused("build", classifier, *target, "--dynamic", "height", says=["height", "batch"])


@pytest.mark.parametrize("shape", [["N", 3, "height", "width"], [1, 3, None, None]])
def test_model_with_dynamic_height_and_width_asks_for_its_input(refused, work, target, shape):
    save(
        make_model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", shape)], [tensor("y", shape)]),
        work / "n.onnx",
    )

    refused("build", "n.onnx", *target, says=["dynamic axes", "--input x="])


def fixed_batch_model():
    weights = {"shape": np.array([1, 8], np.int64)}
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    return make_model(nodes, [tensor("x", [1, 2, 4])], [tensor("y", [1, 8])], weights)


def row_mixing_model():
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    return make_model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 4])])


@pytest.mark.parametrize("model", [fixed_batch_model, row_mixing_model])
def test_dynamic_batch_is_refused_where_the_graph_works_with_one_row_only(refused_here, work, target, model):
    save(model(), work / "net.onnx")

    refused_here("build", "net.onnx", *target, "--dynamic", "batch", says=["without --dynamic batch"])


# Calibration and evaluation data


def test_empty_calibration_folder_is_refused(refused, work, classifier, target):
    (work / "photos").mkdir()

    refused(
        "build", classifier, *target, "--calibration", "photos", "--preprocess", "unit", says="photos holds no pict"
    )


def test_missing_calibration_is_refused(refused_here, classifier, target):
    refused_here("build", classifier, *target, "--calibration", "photos", says="photos does not exist")


def test_pictures_without_preprocessing_are_refused_with_the_option_to_give(refused_here, classifier, target, photos):
    refused_here("build", classifier, *target, "--calibration", photos(3), says=["photos", "--preprocess"])


def test_broken_picture_is_skipped_and_counted(sanderling, classifier, target, photos):
    options = ("--calibration", photos(20, broken=1), "--preprocess", "unit", "--repeats", "2", "--json")
    done = sanderling("build", classifier, *target, *options)

    assert done.code == 0, done.stderr
    skipped = [event for event in done.answer["events"] if event["kind"] == "picture-skipped"]
    assert [event["subject"] for event in skipped] == ["00.png"]
    assert done.answer["evaluation_data"].startswith("5 samples held out")  # a quarter of 19


def test_tenth_of_the_pictures_broken_is_refused(refused, classifier, target, photos):
    options = ("--calibration", photos(20, broken=2), "--preprocess", "unit")

    refused("build", classifier, *target, *options, says=["2 of 20 pictures", "broken", "10 %"])


def test_all_pictures_broken_is_refused(refused_here, classifier, target, photos):
    options = ("--calibration", photos(5, broken=5), "--preprocess", "unit")

    refused_here("build", classifier, *target, *options, says="5 of 5 pictures")


def images(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def test_nan_in_calibration_is_refused_with_its_row(refused, work, classifier, target):
    array = images(20, 3, 8, 8)
    array[13, 1, 2, 3] = np.nan
    np.savez(work / "data.npz", image=array)

    refused("build", classifier, *target, "--calibration", "data.npz", says=["data.npz", "'image'", "NaN", "row 13"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("option", ["--calibration", "--eval"])
def test_data_that_is_not_finite_is_refused(refused_here, work, classifier, target, option, value):
    array = images(20, 3, 8, 8)
    array[19] = value
    np.savez(work / "data.npz", image=array)

    refused_here("build", classifier, *target, option, "data.npz", says=["data.npz", "'image'", "infinite", "row 19"])


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"image": images(20, 3, 8, 8, dtype=np.float64)}, ["float64", "expected float32"]),
        ({"image": images(20, 3, 9, 9)}, ["(1, 3, 9, 9)", "[N, 3, 8, 8]"]),
        ({"image": images(20, 3, 8)}, ["(1, 3, 8)", "4 axes"]),
        ({"picture": images(20, 3, 8, 8)}, ["picture", "image"]),
        ({"image": images(0, 3, 8, 8)}, ["image [0, 3, 8, 8]", "at least 1"]),
        ({"image": images(20, 3, 8, 8), "mask": images(19, 1)}, ["image [20, 3, 8, 8]", "mask [19, 1]"]),
        ({"image": np.float32(1)}, ["image []"]),
        ({}, ["no arrays"]),
        ({"image": images(2, 3, 8, 8), "labels": np.array([0.5, 1.0])}, ["labels", "float64", "integers"]),
        ({"image": images(2, 3, 8, 8), "labels": np.array([0, 1, 2])}, ["labels", "(2,)"]),
        ({"image": np.array([{"a": 1}], dtype=object)}, ["plain arrays"]),
    ],
)
@pytest.mark.parametrize("option", ["--calibration", "--eval"])
def test_arrays_that_do_not_fit_the_model_are_refused(refused_here, work, classifier, target, option, arrays, says):
    np.savez(work / "data.npz", **arrays)

    refused_here("build", classifier, *target, option, "data.npz", says=["data.npz", *says])


def test_calibration_with_the_wrong_dtype_is_refused(refused, work, classifier, target):
    np.savez(work / "data.npz", image=images(20, 3, 8, 8, dtype=np.float64))

    refused("build", classifier, *target, "--calibration", "data.npz", says=["data.npz", "float64", "expected float32"])


def test_calibration_with_the_wrong_shape_is_refused(refused, work, classifier, target):
    np.savez(work / "data.npz", image=images(20, 3, 9, 9))

    refused("build", classifier, *target, "--calibration", "data.npz", says=["data.npz", "(1, 3, 9, 9)"])


def test_file_that_is_no_npz_is_refused(refused_here, work, classifier, target):
    (work / "data.npz").write_bytes(b"PK\x03\x04 not really")

    refused_here("build", classifier, *target, "--calibration", "data.npz", says="data.npz is not a readable")


def test_damaged_npz_is_refused(refused_here, classifier, target, calibration):
    data = bytearray(calibration.read_bytes())
    data[len(data) // 2] ^= 0xFF
    calibration.write_bytes(data)

    refused_here("build", classifier, *target, "--calibration", calibration, says=["calibration.npz", "not a readable"])


def test_pickled_array_is_not_unpickled(refused, work, classifier, target):
    np.savez(work / "data.npz", image=np.array([Bomb(work / "marker")], dtype=object))

    refused("build", classifier, *target, "--calibration", "data.npz", says=["data.npz", "plain arrays"])
    assert not (work / "marker").exists()


@pytest.mark.parametrize(("lines", "count"), [("cat\ndog\nbird\n", 3), ("a\nb\nc\nd\ne\n", 5), ("\n", 0)])
def test_labels_with_another_number_of_lines_are_refused(refused_here, work, classifier, target, lines, count):
    (work / "labels.txt").write_text(lines)

    refused_here("build", classifier, *target, "--labels", "labels.txt", says=[f"{count} lines", "4 classes"])


def test_labels_with_the_wrong_number_of_lines_are_refused(refused, work, classifier, target):
    (work / "labels.txt").write_text("cat\ndog\nbird\n")

    refused("build", classifier, *target, "--labels", "labels.txt", says=["labels.txt", "3 lines", "4 classes"])


def test_missing_labels_are_refused(refused_here, classifier, target):
    refused_here("build", classifier, *target, "--labels", "labels.txt", says=["labels.txt", "do not exist"])


def test_labels_for_a_model_that_is_no_classifier_are_refused(refused_here, work, target):
    save(chain(["Relu"], shape=(1, 4, 4)), work / "net.onnx")

    refused_here("build", "net.onnx", *target, "--labels", "imagenet", says="no classifier")


@pytest.mark.parametrize("wrong", [4, -1])
def test_labels_below_or_above_the_classes_are_refused(refused_here, work, classifier, target, wrong):
    write_samples(work / "eval.npz", count=8, labels=np.array([0, 1, 2, 3, 0, 1, 2, wrong]))

    refused_here("build", classifier, *target, "--eval", "eval.npz", says=[f"{wrong}", "4 classes"])


def test_evaluation_labels_out_of_range_are_refused(refused, work, classifier, target):
    write_samples(work / "eval.npz", count=2, labels=np.array([0, 4]))

    refused("build", classifier, *target, "--eval", "eval.npz", says=["from 0 to 4", "4 classes"])


def test_evaluation_labels_for_a_model_that_is_no_classifier_are_refused(refused_here, work, target):
    save(sum_and_difference(), work / "net.onnx")
    np.savez(work / "eval.npz", a=images(4, 3), b=images(4, 3), labels=np.zeros(4, np.int64))

    refused_here("build", "net.onnx", *target, "--eval", "eval.npz", says=["eval.npz", "no classifier"])


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("path,label\n00.png,unicorn\n", ["unicorn", "--labels"]),
        ("path,label\n00.png,\n", ["label ''"]),
        ("path,label\n00.png,7\n", ["7", "4 classes"]),
        ("picture,label\n00.png,1\n", ["picture", "path"]),
        ("path,label\nnothing.png,1\n", ["1 of 1 pictures"]),
        ("", ["columns []"]),
    ],
)
def test_table_of_pictures_that_cannot_be_used_is_refused(refused_here, classifier, target, photos, table, says):
    path = photos(2) / "table.csv"
    path.write_text(table)

    refused_here("build", classifier, *target, "--eval", path, "--preprocess", "unit", says=says)


# PyTorch


def test_checkpoint_that_fits_is_loaded(sanderling_here, nets, checkpoint, target):
    quick = ("--repeats", "2", "--precision", "fp32")
    done = sanderling_here("build", f"{nets}:small", *target, *INPUT, "--weights", checkpoint(), *quick)

    assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"3.bias": None}, "missing keys: 3.bias"),
        ({"extra.weight": torch.zeros(2)}, "unexpected keys: extra.weight"),
        ({"0.weight": torch.zeros(4, 3, 5, 5)}, "0.weight is [4, 3, 5, 5], expected [4, 3, 3, 3]"),
    ],
    ids=["missing", "unexpected", "wrong shape"],
)
def test_checkpoint_that_does_not_fit_names_its_keys(refused_here, nets, checkpoint, target, changes, says):
    weights = checkpoint(**changes)

    refused_here(
        "build", f"{nets}:small", *target, *INPUT, "--weights", weights, says=["weights.safetensors do not fit", says]
    )


def test_checkpoint_with_every_mismatch_names_all_of_them(refused, nets, checkpoint, target):
    weights = checkpoint(**{"3.bias": None, "head.bias": torch.zeros(4), "0.bias": torch.zeros(5)})

    refused(
        "build",
        f"{nets}:small",
        *target,
        *INPUT,
        "--weights",
        weights,
        says=["missing keys: 3.bias", "unexpected keys: head.bias", "0.bias is [5], expected [4]"],
    )


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pt", "weights.pth"])
def test_checkpoint_that_cannot_be_read_is_refused(refused_here, work, nets, target, name):
    (work / name).write_bytes(b"\x80 not a checkpoint")

    refused_here("build", f"{nets}:small", *target, *INPUT, "--weights", name, says=[name, "plain tensors"])


def test_checkpoint_that_is_missing_is_refused(refused_here, nets, target):
    refused_here("build", f"{nets}:small", *target, *INPUT, "--weights", "no.pt", says=["no.pt", "do not exist"])


def test_checkpoint_that_needs_more_than_tensors_is_refused(refused_here, work, nets, target):
    torch.save({"model": torch.nn.Linear(2, 2)}, work / "weights.pth")

    refused_here("build", f"{nets}:small", *target, *INPUT, "--weights", "weights.pth", says=["weights.pth", "tensors"])


def test_checkpoint_with_plain_numbers_beside_tensors_is_refused(refused_here, work, nets, target):
    torch.save({"0.weight": torch.zeros(1), "epoch": 3}, work / "weights.pt")

    refused_here("build", f"{nets}:small", *target, *INPUT, "--weights", "weights.pt", says="dictionary of tensors")


def test_pickled_module_needs_the_word_for_it(refused, work, target):
    torch.save(torch.nn.Linear(4, 4), work / "net.pt")

    refused("build", "net.pt", *target, "--input", "x=1,4", says=["net.pt", "runs code", "--trust-pickle"])


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.pkl", "net.bin"])
def test_pickle_is_never_executed_without_the_word_for_it(refused_here, work, target, name):
    (work / name).write_bytes(pickle.dumps(Bomb(work / "marker")))

    refused_here("build", name, *target, *INPUT, says=[name, "--trust-pickle"])


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.bin", "weights.safetensors"])
def test_checkpoint_is_never_executed(refused_here, work, nets, target, name):
    torch.save(Bomb(work / "marker"), work / name)

    refused_here("build", f"{nets}:small", *target, *INPUT, "--weights", name, says=[name, "plain tensors"])


def test_checkpoint_is_not_executed_even_when_pickles_are_trusted(refused_here, work, nets, target):
    torch.save(Bomb(work / "marker"), work / "weights.pt")

    refused_here(
        "build", f"{nets}:small", *target, *INPUT, "--weights", "weights.pt", "--trust-pickle", says="plain tensors"
    )


def change_archive(work, change):
    """Write ``net.pt2``: a plain archive whose members are ``change(name, bytes)``, and those that it adds."""
    program = torch.export.export(
        torch.nn.Linear(4, 4), (torch.zeros(2, 4),), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    torch.export.save(program, work / "plain.pt2")
    with zipfile.ZipFile(work / "plain.pt2") as plain, zipfile.ZipFile(work / "net.pt2", "w") as changed:
        for name in plain.namelist():
            changed.writestr(name, change(name, plain.read(name)))
        return plain.namelist()[0].partition("/")[0]


def test_archive_with_pickled_objects_is_never_executed(refused_here, work, target):
    """torch.export.load unpickles an archive's sample inputs when they are not plain tensors."""
    torch.save(Bomb(work / "marker"), work / "bomb.pt")
    bomb = (work / "bomb.pt").read_bytes()
    change_archive(work, lambda name, data: bomb if name.endswith("sample_inputs/model.pt") else data)

    refused_here("build", "net.pt2", *target, "--input", "x=1,4", says=["net.pt2", "--trust-pickle"])


def test_archive_with_code_for_a_symbolic_size_is_never_executed(refused_here, work, target):
    """torch.export.load hands the expressions of dynamic axes to sympify, which evaluates them as Python."""
    code = f"__import__('os').system('touch {work / 'marker'}')"

    def change(name, data):
        text = re.sub(rb'"expr_str": ?"[^"]*"', f'"expr_str": "{code}"'.encode(), data)
        return text if name.endswith("models/model.json") else data

    change_archive(work, change)

    refused_here("build", "net.pt2", *target, "--input", "x=1,4", says="net.pt2")


def test_archive_with_compiled_code_is_refused_before_it_is_loaded(refused_here, work, target):
    """torch.export.load opens the shared libraries that AOTInductor puts into an archive."""
    root = change_archive(work, lambda _, data: data)
    with zipfile.ZipFile(work / "net.pt2", "a") as archive:
        archive.writestr(f"{root}/data/aotinductor/model/net.wrapper.so", b"\x7fELF")
        archive.writestr(f"{root}/data/aotinductor/model/net.wrapper_metadata.json", '{"AOTI_DEVICE_KEY": "cpu"}')

    refused_here("build", "net.pt2", *target, "--input", "x=1,4", says=["net.pt2", "--trust-pickle"])


def test_trusted_pickle_that_holds_no_module_is_refused(refused_here, work, target):
    torch.save({"weight": torch.zeros(2)}, work / "net.pt")

    refused_here("build", "net.pt", *target, *INPUT, "--trust-pickle", says=["net.pt", "holds a dict"])


def test_weights_beside_a_source_that_has_its_own_are_refused(refused_here, work, target):
    torch.save(torch.nn.Linear(4, 4), work / "net.pt")

    refused_here("build", "net.pt", *target, *INPUT, "--weights", "w.pt", "--trust-pickle", says="--weights goes with")


def test_weights_beside_an_onnx_file_are_refused(refused_here, classifier, checkpoint, target):
    refused_here("build", classifier, *target, "--weights", checkpoint(), says="--weights")


def test_file_that_is_no_archive_is_refused(refused_here, work, target):
    (work / "net.pt2").write_text("no archive\n")

    refused_here("build", "net.pt2", *target, *INPUT, says="net.pt2 is not a torch.export archive")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("no_such_module:small", ["no_such_module", "cannot be imported"]),
        ("nets:large", ["nets:large", "has no 'large'"]),
        ("nets:failing", ["nets:failing", "RuntimeError", "no weights on this shelf"]),
        ("nets:number", ["nets:number", "returned a int", "torch.nn.Module"]),
        ("nets:setting", ["nets:setting", "is a int"]),
        ("nets:undecided", ["could not export"]),
        ("nets:unsteady", ["disagrees with PyTorch"]),
    ],
)
@pytest.mark.usefixtures("nets")
def test_factory_that_gives_no_usable_module_is_refused(refused_here, target, source, says):
    refused_here("build", source, *target, *INPUT, says=says)


def test_factory_that_does_not_exist_is_refused(refused, nets, target):
    refused("build", f"{nets}:large", *target, *INPUT, says=["nets:large", "has no 'large'"])


@pytest.mark.parametrize("text", ["raise ValueError('half written')", "def broken(:", "import sys; sys.exit(5)"])
def test_factory_whose_module_fails_to_import_is_refused(refused_here, work, target, text):
    (work / "hasty.py").write_text(text + "\n")

    refused_here("build", "hasty:net", *target, *INPUT, says="hasty")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('{"width": 4', "--factory-args is not valid JSON"),
        ("[4]", "--factory-args must be a JSON object, got list"),
        ('{"width": 4}', "unexpected keyword argument 'width'"),
    ],
)
def test_factory_arguments_that_do_not_fit_are_refused(refused_here, nets, target, arguments, says):
    refused_here("build", f"{nets}:small", *target, *INPUT, "--factory-args", arguments, says=says)


def test_pytorch_source_without_an_input_is_refused(refused_here, nets, target):
    refused_here("build", f"{nets}:small", *target, says="--input NAME=")


def test_input_that_the_module_does_not_take_is_refused(refused_here, nets, target):
    refused_here("build", f"{nets}:small", *target, "--input", "x=1,3,5,5", says="could not export")


@pytest.mark.parametrize("opset", [17, 99])
def test_opset_that_pytorch_does_not_export_is_refused(refused_here, nets, target, opset):
    refused_here("build", f"{nets}:small", *target, *INPUT, "--opset", opset, says=f"--opset {opset}")


# A missing extra


def test_missing_pytorch_is_said_with_exit_code_3(refused, nets, target):
    says = ["PyTorch", "pip install 'sanderling[torch]'"]

    refused("build", f"{nets}:small", *target, *INPUT, without=["torch"], code=3, says=says)


def test_missing_pillow_is_said_with_exit_code_3(refused, classifier, target, photos):
    options = ("--calibration", photos(4), "--preprocess", "unit")

    refused("build", classifier, *target, *options, without=["PIL"], code=3, says="pip install 'sanderling[vision]'")


@pytest.mark.parametrize("missing", ["jinja2", "onnxslim"])
def test_missing_workshop_tool_is_said_with_exit_code_3(refused, classifier, target, missing):
    refused("build", classifier, *target, "--repeats", "2", without=[missing], code=3, says="'sanderling[build]'")


# Options and outputs


@pytest.mark.parametrize("name", ["model", "model.zip", "model.sdl.tar", ".sdl", ".sdl.zip"])
def test_output_that_is_not_named_like_a_package_is_refused(refused_here, classifier, out, name):
    refused_here("build", classifier, "-o", out / name, "--repeats", "2", says=["NAME.sdl"])


def test_output_without_the_ending_is_refused(refused, classifier, out):
    refused("build", classifier, "-o", out / "model", says=["out/model", "NAME.sdl"])


def test_output_folder_that_is_no_package_is_kept(refused, classifier, out, target):
    (out / "model.sdl").mkdir()
    (out / "model.sdl" / "thesis.txt").write_text("three years of work\n")

    refused("build", classifier, *target, says=["model.sdl", "is no package"])


@pytest.mark.parametrize("name", ["model.sdl", "model.sdl.zip"])
def test_output_file_that_is_no_package_is_kept(refused_here, classifier, out, name):
    (out / name).write_text("three years of work\n")

    refused_here("build", classifier, "-o", out / name, "--repeats", "2", says=[name, "is no package"])


def test_output_in_a_folder_that_does_not_exist_is_refused(refused, classifier, out):
    refused("build", classifier, "-o", out / "sub" / "model.sdl", says=["sub/model.sdl", "No such file or directory"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--precision", "fp32,int4"], ["int4", "fp32, fp16, int8"]),
        (["--precision", "int8"], ["--calibration"]),
        (["--budget", "f1=0.8"], ["f1=0.8", "top1, map, agreement, cosine"]),
        (["--budget", "top1"], ["top1", "number"]),
        (["--budget", "top1=-1"], ["-1", "at least 0"]),
        (["--budget", "top1=nan"], ["nan", "number"]),
        (["--budget", "top1=0,8"], ["0,8", "number"]),
        (["--preprocess", "resnet"], ["resnet", "imagenet"]),
        (["--preprocess", '{"hight": 8}'], ["hight", "known keys"]),
        (["--preprocess", '{"height": 9, "width": 9}'], ["[1, 3, 9, 9]", "[N, 3, 8, 8]"]),
        (["--preprocess", "{"], ["JSON"]),
    ],
)
def test_option_that_cannot_be_used_is_refused(refused_here, classifier, target, options, says):
    refused_here("build", classifier, *target, *options, says=says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--precision", "int4"], ["int4", "fp32, fp16, int8"]),
        (["--budget", "f1=0.8"], ["f1=0.8", "top1, map, agreement, cosine"]),
    ],
)
def test_unknown_precision_and_budget_are_refused(refused, classifier, target, options, says):
    refused("build", classifier, *target, *options, says=says)


@pytest.mark.parametrize("budget", ["top1=1", "agreement=5"])
def test_budget_of_a_classifier_is_refused_for_another_model(refused_here, work, target, budget):
    save(sum_and_difference(), work / "net.onnx")

    refused_here("build", "net.onnx", *target, "--budget", budget, "--repeats", "2", says=[budget, "cosine=0.01"])


def test_preprocessing_for_a_model_with_two_inputs_is_refused(refused_here, work, target):
    save(sum_and_difference(), work / "net.onnx")

    refused_here("build", "net.onnx", *target, "--preprocess", "unit", says="one input")


# Packages


def change_byte(package):
    path = package / "model.int8.onnx"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut_file(package):
    path = package / "golden.npz"
    path.write_bytes(path.read_bytes()[:-1])


def remove_file(package):
    (package / "model.fp16.onnx").unlink()


def change_manifest(package):
    path = package / "manifest.json"
    path.write_text(path.read_text().replace('"cat"', '"cow"'))


def change_schema_version(package):
    path = package / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 2}))


def remove_manifest(package):
    (package / "manifest.json").unlink()


def cut_manifest(package):
    path = package / "manifest.json"
    path.write_bytes(path.read_bytes()[:100])


def rewrite(package, **changes):
    write_manifest(package, Package.open(package).manifest.model_copy(update=changes))


def leave_by_parent(package):
    (package.parent / "secret").write_text("secret\n")
    entry = FileEntry(sha256="0" * 64, size_bytes=7)
    rewrite(package, files=Package.open(package).manifest.files | {"../secret": entry})


def leave_by_root(package):
    rewrite(
        package,
        files=Package.open(package).manifest.files | {"/etc/hostname": FileEntry(sha256="0" * 64, size_bytes=1)},
    )


def leave_by_link(package):
    path = package / "model.int8.onnx"
    path.rename(package.parent / "elsewhere.onnx")
    path.symlink_to(package.parent / "elsewhere.onnx")


def name_unlisted_file(package):
    variants = [
        variant.model_copy(update={"file": "other.onnx"}) for variant in Package.open(package).manifest.variants
    ]
    rewrite(package, variants=tuple(variants))


def name_unknown_engine(package):
    variants = [
        variant.model_copy(update={"engines": ("abacus",)}) for variant in Package.open(package).manifest.variants
    ]
    rewrite(package, variants=tuple(variants))


DAMAGES = [
    (change_byte, ["model.int8.onnx", "changed"]),
    (cut_file, ["golden.npz", "bytes"]),
    (remove_file, ["model.fp16.onnx", "missing"]),
    (change_manifest, ["manifest.json", "changed"]),
    (change_schema_version, ["schema version 2", "version 1"]),
    (remove_manifest, ["no manifest.json"]),
    (cut_manifest, ["manifest.json", "JSON"]),
    (leave_by_parent, ["../secret", "leaves the package"]),
    (leave_by_root, ["/etc/hostname", "leaves the package"]),
    (leave_by_link, ["model.int8.onnx", "leaves the package"]),
    (name_unlisted_file, ["other.onnx"]),
    (name_unknown_engine, ["abacus", "onnxruntime"]),
]
DAMAGES_OF_THE_ISSUE = [DAMAGES[index] for index in (0, 2, 4, 7)]


def name_of(value):
    return value.__name__ if callable(value) else ""


@pytest.fixture
def sample(work):
    np.save(work / "one.npy", images(1, 3, 8, 8))
    return "one.npy"


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize(("damage", "says"), DAMAGES, ids=name_of)
def test_damaged_package_is_refused(refused_here, package, sample, command, damage, says):
    damage(package)

    refused_here(command, package, *([sample] if command == "run" else []), says=says)


@pytest.mark.parametrize(("damage", "says"), DAMAGES_OF_THE_ISSUE, ids=name_of)
def test_damaged_package_is_not_run_by_the_installed_command(refused, package, sample, damage, says):
    damage(package)

    refused("run", package, sample, says=says)


@pytest.mark.parametrize(("damage", "says"), [DAMAGES[index] for index in (3, 4, 5, 6, 7, 8, 9)], ids=name_of)
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_package_without_a_readable_manifest_is_refused(refused_here, package, command, damage, says):
    damage(package)

    refused_here(command, package, says=says)


@pytest.mark.parametrize("damage", [change_byte, cut_file, remove_file], ids=name_of)
def test_damaged_zip_is_refused(refused_here, work, package, sample, damage):
    damage(package)
    write_zip(package, work / "model.sdl.zip")

    refused_here("run", "model.sdl.zip", sample, says="model.sdl.zip")


def test_zip_that_leaves_the_package_writes_nothing_outside(refused_here, work, package, sample):
    leave_by_parent(package)
    write_zip(package, work / "model.sdl.zip")
    with zipfile.ZipFile(work / "model.sdl.zip", "a") as archive:
        archive.writestr("../secret", "planted")
    (work / "secret").unlink()

    refused_here("run", "model.sdl.zip", sample, says=["../secret", "leaves the package"])
    assert list(work.parent.rglob("secret")) == []


@pytest.mark.parametrize("content", [b"", b"no zip\n", b"PK\x05\x06" + b"\0" * 18])
def test_file_that_is_no_package_is_refused(refused_here, work, sample, content):
    (work / "model.sdl.zip").write_bytes(content)

    refused_here("run", "model.sdl.zip", sample, says="model.sdl.zip")


def test_zip_with_any_byte_changed_is_refused_or_still_whole(work, package, monkeypatch):
    monkeypatch.setenv("SANDERLING_CACHE", str(work / "cache"))
    path = work / "model.sdl.zip"
    write_zip(package, path)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir
    outcomes = set()
    for position in [*range(0, directory, directory // 60), *range(directory, len(data), 5)]:
        changed = bytearray(data)
        changed[position] ^= 0x55
        path.write_bytes(changed)
        outcomes.add(outcome_of_opening(path))
    assert outcomes == {"refused", "whole"}


def outcome_of_opening(path):
    try:
        opened = Package.open(path)
    except PackageError:
        return "refused"
    return "whole" if opened.problems() == [] else "broken"


def test_package_that_does_not_exist_is_refused(refused_here, sample):
    refused_here("run", "nothing.sdl", sample, says="nothing.sdl does not exist")


# Running


def test_run_on_a_missing_picture_is_refused(refused, package):
    refused("run", package, "nothing.png", says="nothing.png does not exist")


def test_run_on_a_missing_array_is_refused(refused, package):
    refused("run", package, "nothing.npy", says="nothing.npy does not exist")


def test_run_on_a_broken_picture_is_refused(refused_here, package, photos):
    refused_here("run", package, photos(1, broken=1) / "00.png", says=["00.png", "not a readable picture"])


def test_run_on_an_array_with_the_wrong_shape_is_refused(refused, work, package):
    np.save(work / "one.npy", images(1, 3, 9, 9))

    refused("run", package, "one.npy", says=["(1, 3, 9, 9)", "[N, 3, 8, 8]"])


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (images(1, 3, 8, 8, dtype=np.float64), ["float64", "expected float32"]),
        (images(3, 8, 8), ["(3, 8, 8)", "4 axes"]),
        (np.array([None]), ["plain arrays"]),
    ],
)
def test_run_on_an_array_that_does_not_fit_is_refused(refused_here, work, package, array, says):
    np.save(work / "one.npy", array)

    refused_here("run", package, "one.npy", says=says)


def test_run_on_an_array_with_an_unknown_name_is_refused(refused_here, work, package):
    np.savez(work / "one.npz", picture=images(1, 3, 8, 8))

    refused_here("run", package, "one.npz", says=["picture", "image: float32"])


def test_run_on_an_array_file_that_is_none_is_refused(refused_here, work, package):
    (work / "one.npy").write_text("no array\n")

    refused_here("run", package, "one.npy", says="one.npy is not a readable file")


def test_run_of_an_unknown_variant_is_refused_with_those_there_are(refused_here, package, sample):
    refused_here("run", package, sample, "--variant", "int4", says=["int4", "fp32, fp16, int8"])


def test_run_that_should_write_several_outputs_to_one_file_is_refused(refused_here, package, sample):
    refused_here("run", package, sample, sample, "--out", "outputs.npz", says=["--out", "2 files"])


def test_run_that_should_write_into_a_missing_folder_is_refused(refused_here, package, sample):
    refused_here("run", package, sample, "--out", "sub/outputs.npz", says=["sub/outputs.npz", "No such file"])


def test_bench_with_a_batch_that_the_model_does_not_take_is_refused(refused_here, work, sanderling_here):
    save(conv_classifier(batch=1), work / "net.onnx")
    assert sanderling_here("build", "net.onnx", "-o", "net.sdl", "--repeats", "2").code == 0

    refused_here("bench", "net.sdl", "--batch", "4", says=["batch 4", "--dynamic batch"])


def test_long_message_and_strange_file_name_stay_one_line(work, environment, out):
    name = "a\nb.onnx"
    (work / name).write_text("no model\n")

    done = subprocess.run(
        [str(COMMAND), "build", name, "-o", str(out / "model.sdl")],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("sanderling: error: a b.onnx")
    assert list(out.iterdir()) == []
