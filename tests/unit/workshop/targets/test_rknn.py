"""What an export to Rockchip decides and compares without the toolkit."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sanderling.run.rknn.toolkit import LayerError, layer_errors
from sanderling.workshop.targets import device_scripts
from sanderling.workshop.targets.fixed_rows import FixedRows
from sanderling.workshop.targets.rknn_layers import compare, cosine, opened, worst
from tests.models import conv_classifier, run_directly
from tests.quantized import in_int8

TABLE = """# simulator_error: calculate the output error of each layer of the simulator

layer_name                                 simulator_error
                                       entire              single
                                    cos      euc        cos      euc
--------------------------------------------------------------------------
[Input] input                     1.00000 | 0.00000   1.00000 | 0.00000
[Conv] getitem
[Clip] hardtanh                   0.99995 | 15.90907  0.99990 | 15.90907
[Conv] getitem_6                  0.99832 | 145.52071 0.99975 | 55.88617
"""
FAKE_RKNNLITE = '''"""A fake of rknnlite.api: gives back the golden outputs for the golden inputs, wherever it is."""
import json, os, pathlib
import numpy as np


class RKNNLite:
    def load_rknn(self, path):
        self.folder = pathlib.Path(path).parent
        return 0 if pathlib.Path(path).read_bytes() == b"net" else -1

    def init_runtime(self):
        return 0

    def inference(self, inputs):
        golden = np.load(self.folder / "golden.npz")
        given = inputs[0].transpose(0, 3, 1, 2)
        call = next(i for i, array in enumerate(golden["input/image"]) if np.array_equal(array, given))
        return [golden["output/scores"][call] * float(os.environ.get("FAKE_SIGN", "1"))]
'''


@pytest.fixture
def quantized():
    images = np.random.default_rng(0).random((4, 3, 8, 8), np.float32)
    return in_int8(conv_classifier(batch=1), {"image": images[:1]})


def test_table_of_the_toolkit_is_read_and_fused_layers_are_left_out():
    assert layer_errors(TABLE) == (
        LayerError("input", "Input", 1.0, 1.0),
        LayerError("hardtanh", "Clip", 0.99995, 0.9999),
        LayerError("getitem_6", "Conv", 0.99832, 0.99975),
    )


def test_worst_layers_are_those_that_lose_most_by_themselves():
    layers = (LayerError("a", "Conv", 0.9, 0.99), LayerError("b", "Conv", 0.5, 0.999), LayerError("c", "Add", 0.95))
    assert [layer.name for layer in worst(layers, 2)] == ["c", "a"]


def test_opened_graph_returns_each_activation_and_the_same_outputs(quantized):
    feeds = {"image": np.random.default_rng(1).random((1, 3, 8, 8), np.float32)}
    graph = opened(quantized)
    outputs = run_directly(graph, feeds)
    assert np.array_equal(outputs["scores"], run_directly(quantized, feeds)["scores"])
    assert len(outputs) > 3
    assert all(name == "scores" or name.endswith(":seen") for name in outputs)


def test_comparison_names_the_node_that_computes_a_tensor(quantized):
    feeds = {"image": np.random.default_rng(1).random((1, 3, 8, 8), np.float32)}
    expected = run_directly(opened(quantized), feeds)
    layers = compare(quantized, expected, expected)
    assert all(layer.entire == pytest.approx(1.0) for layer in layers)
    assert {layer.kind for layer in layers}.isdisjoint({"QuantizeLinear", "DequantizeLinear"})
    altered = {name: array + (name == "scores") for name, array in expected.items()}
    (least,) = worst(compare(quantized, expected, altered), 1)
    assert least.name.startswith("scores")


def test_cosine_of_zeros_is_whether_both_are():
    assert cosine(np.zeros(3), np.zeros(3)) == 1.0
    assert cosine(np.zeros(3), np.ones(3)) == 0.0
    assert cosine(np.ones(3), -np.ones(3)) == pytest.approx(-1.0)


def test_fewer_rows_are_filled_up_and_left_out_again():
    class Doubles:
        def run(self, feeds):
            assert feeds["x"].shape == (4, 2)
            return {"y": feeds["x"] * 2}

    fixed = FixedRows(Doubles(), 4)
    given = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert np.array_equal(fixed.run({"x": given})["y"], given * 2)
    for rows in (4, 8, 9):
        full = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        assert np.array_equal(fixed.run({"x": full})["y"], full * 2)
    assert np.array_equal(FixedRows(Doubles(), None).run({"x": full[:4]})["y"], full[:4] * 2)


def on_board(folder, *, net=b"net", sign="1"):
    """Run the script for the board, with a fake of Rockchip's runtime."""
    images = np.random.default_rng(0).random((2, 1, 3, 8, 8), np.float32)
    scores = np.random.default_rng(1).random((2, 1, 4), np.float32)
    np.savez(folder / "golden.npz", **{"input/image": images, "output/scores": scores})
    expected = {"net": "small.rknn", "inputs": ["image"], "outputs": ["scores"], "cosine_limit": 0.98}
    (folder / "golden.json").write_text(json.dumps(expected))
    (folder / "small.rknn").write_bytes(net)
    shutil.copy(Path(device_scripts.__file__).with_name("rknn_run.py"), folder / "run_on_device.py")
    (folder / "rknnlite").mkdir()
    (folder / "rknnlite" / "__init__.py").touch()
    (folder / "rknnlite" / "api.py").write_text(FAKE_RKNNLITE)
    words = [sys.executable, str(folder / "run_on_device.py"), "--repeats", "5"]
    return subprocess.run(words, env={"FAKE_SIGN": sign}, capture_output=True, text=True, timeout=60, check=False)


def test_script_for_the_board_compares_and_times(tmp_path):
    done = on_board(tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "benchmark.json").read_bytes())
    assert found["passed"] is True
    assert found["cosine"]["scores"] == pytest.approx(1.0)
    assert len(found["samples_ms"]) == 5


def test_script_for_the_board_says_no_when_the_net_computes_something_else(tmp_path):
    done = on_board(tmp_path, sign="-1")
    assert done.returncode == 1
    assert json.loads((tmp_path / "benchmark.json").read_bytes())["passed"] is False


def test_script_for_the_board_tells_a_net_that_does_not_load(tmp_path):
    done = on_board(tmp_path, net=b"of another chip")
    assert done.returncode == 1
    assert "does not load here" in done.stderr
    assert not (tmp_path / "benchmark.json").exists()
