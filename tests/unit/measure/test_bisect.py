from __future__ import annotations

import numpy as np
import pytest

from sanderling.api import build
from sanderling.core.errors import OptionError
from sanderling.measure.bisect import bisect
from tests.models import conv_classifier, random_arrays, save


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bisect")
    np.savez(folder / "data.npz", **random_arrays({"image": (24, 3, 8, 8)}))
    model = save(conv_classifier(), folder / "model.onnx")
    return build(model, folder / "model.sdl", calibration=folder / "data.npz", repeats=2).path


@pytest.mark.parametrize("variant", ["fp32", "int8"])
def test_engine_that_agrees_has_no_diverging_node(package, variant):
    found = bisect(package, engine_name="onnxruntime", variant=variant)
    assert (found.node, found.engine, found.variant) == (None, "onnxruntime", variant)
    assert found.tensors > 3
    assert found.worst <= found.tolerance


def test_engine_that_computes_nothing_diverges_at_the_first_node(package):
    found = bisect(package, engine_name="null", variant="fp32")
    assert found.op_type == "Conv"
    assert found.error == pytest.approx(1, rel=1e-3)


def test_unknown_engine_is_refused_with_the_known_ones(package):
    with pytest.raises(OptionError, match="unknown engine 'abacus': available are"):
        bisect(package, engine_name="abacus")
