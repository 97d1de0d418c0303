from __future__ import annotations

import numpy as np
import onnx
import pytest

from sanderling.api import build
from sanderling.core.errors import OptionError
from sanderling.measure.bisect import bisect
from sanderling.run.engines import known_engine
from sanderling.run.engines.base import Optimization
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


def test_quantised_variant_is_compared_where_it_stores_integers(package):
    found = bisect(package, engine_name="null", variant="int8")
    assert (found.op_type, found.node is not None) == ("QuantizeLinear", True)
    graph = onnx.load(package / "model.int8.onnx").graph
    made = {name for node in graph.node for name in node.output}
    stored = [node for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in made]
    outputs = {value.name for value in graph.output} - {node.output[0] for node in stored}
    assert found.tensors == len(stored) + len(outputs)


def test_engine_that_computes_between_integers_only_can_be_looked_into(package):
    state = known_engine("qnn").availability()
    if not state.installed:
        pytest.skip(f"qnn is not installed: {state.hint}")
    found = bisect(package, engine_name="qnn", variant="int8")
    assert (found.node, found.worst <= found.tolerance) == (None, True)
    assert found.tensors > 2


def test_diverging_tensor_is_named_with_the_node_that_computed_it(package, monkeypatch):
    """The second stored tensor is made wrong: its node is the operator, not its rounding."""
    from sanderling.measure import bisect as module

    plain = module._run

    def wrong(data, name, feeds, optimization):
        results = plain(data, name, feeds, optimization)
        if optimization is Optimization.ALL:
            conv = next(node for node in onnx.load_from_string(data).graph.node if node.op_type == "Conv")
            readers = {node.input[0]: node for node in onnx.load_from_string(data).graph.node if node.input}
            tensor = conv.output[0]
            while tensor in readers and readers[tensor].op_type != "QuantizeLinear":
                tensor = readers[tensor].output[0]
            stored = readers[readers[tensor].output[0]].output[0]
            results[stored] = results[stored] + 100
        return results

    monkeypatch.setattr(module, "_run", wrong)
    found = bisect(package, engine_name="onnxruntime", variant="int8")
    assert found.op_type in ("Conv", "Relu")
    assert found.tensor is not None
