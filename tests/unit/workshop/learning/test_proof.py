import numpy as np
import pytest
import torch

from sanderling.core.errors import NotMetError
from sanderling.model.tensors import read_safetensors
from sanderling.workshop.learning import proof


@pytest.fixture
def off(monkeypatch):
    """PyTorch's gradients in one dtype are off in the first of batches; gives how often they were asked for."""
    true, asked = proof.true_gradients, []

    def make(dtype, batches):
        def gradients(reference, batch, parameters):
            found = true(reference, batch, parameters)
            if reference.dtype != dtype:
                return found
            asked.append(dtype)
            return found | {"grad.4.bias": 1.001 * found["grad.4.bias"]} if len(asked) <= batches else found

        monkeypatch.setattr(proof, "true_gradients", gradients)
        return asked

    return make


@pytest.mark.parametrize(("dtype", "batches"), [(torch.float32, 2), (torch.float64, 2)])
def test_batch_that_rounding_gives_another_gradient_is_not_the_golden_one(learn, off, dtype, batches):
    first, folder, _ = learn("mlp", private=False)
    before = read_safetensors(folder / first.golden.file)["input.x"]
    asked = off(dtype, batches)
    spec, folder, _ = learn("mlp", private=False)
    golden = read_safetensors(folder / spec.golden.file)
    assert len(asked) == batches + 1
    assert spec.golden.error <= 1e-5
    assert not np.array_equal(golden["input.x"], before)


def test_gradients_that_are_off_in_every_batch_are_refused(learn, off):
    asked = off(torch.float64, batches=100)
    with pytest.raises(NotMetError, match=r"'acc.out.4.bias' differs by 1.0e-03"):
        learn("mlp", private=False)
    assert len(asked) == 8


def test_module_that_is_made_for_float32_is_held_to_float32(learn):
    spec, _, _ = learn("single_precision")
    assert spec.golden.error <= 1e-5
