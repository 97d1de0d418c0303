import numpy as np
import pytest

from sanderling.api import build
from sanderling.core.errors import OptionError
from sanderling.core.progress import Recorder, Silent
from sanderling.measure.batches import measure_table, parse_batches
from tests.models import conv_classifier, save


@pytest.fixture
def fixed_package(tmp_path):
    model = save(conv_classifier(batch=2), tmp_path / "pair.onnx")
    data = tmp_path / "data.npz"
    np.savez(data, image=np.random.default_rng(0).standard_normal((20, 2, 3, 8, 8)).astype(np.float32))
    return build(model, tmp_path / "pair.sdl", calibration=data, precision="fp32", repeats=2).path


def test_a_fixed_batch_is_the_only_size_and_is_told(fixed_package):
    progress = Recorder(Silent())
    table = measure_table(fixed_package, batches=(1, 4), warmup=1, repeats=3, progress=progress)
    entry = table.model("pair")["cpu"]
    assert set(entry.latency_ms) == {2}
    assert entry.fixed
    assert [event.kind for event in progress.events] == ["batch-fixed"]
    assert "build with --dynamic batch" in progress.events[0].reason


def test_sizes_are_read_in_order_and_once():
    assert parse_batches("8,1,4,4") == (1, 4, 8)


@pytest.mark.parametrize("text", ["", "one", "0,1", "1,,2", "5000"])
def test_faulty_sizes_are_refused(text):
    with pytest.raises(OptionError, match="are not of the form 1,2,4,8"):
        parse_batches(text)
