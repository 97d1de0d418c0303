"""Losses as nodes against PyTorch's own, values and gradients, through the proof of a task."""

import numpy as np
import pytest

from sanderling.core.errors import OptionError
from sanderling.workshop.learning.options import parse_loss

TOLERANCE = 1e-5


@pytest.mark.parametrize(
    "loss",
    [
        "cross_entropy:smoothing=0.1",
        "cross_entropy:smoothing=0.2,weights=1/2/0.5/3/1,ignore=3",
        "mse",
        "bce",
        "cosine",
        "contrastive:temperature=0.2",
    ],
)
def test_loss_is_pytorchs(learn, loss):
    spec, _, _ = learn("mlp", "full", loss)
    assert spec.golden.error <= TOLERANCE
    assert (spec.private.file is None) == (spec.loss.kind == "contrastive")


@pytest.mark.parametrize("loss", ["cross_entropy:shift", "cross_entropy:shift,smoothing=0.1,ignore=2"])
def test_loss_of_tokens_is_pytorchs(learn, loss):
    spec, _, _ = learn("llama", "head", loss)
    assert spec.golden.error <= TOLERANCE
    assert spec.private.refused is None
    assert spec.label.shape == ("batch", 6)


def test_loss_that_compares_samples_has_no_private_step_and_says_why(learn):
    spec, _, events = learn("mlp", "head", "contrastive")
    assert "compares samples" in spec.private.refused
    assert "privacy-refused" in {event.kind for event in events}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hinge", "names no loss: available are cross_entropy"),
        ("mse:smoothing=0.1", "unknown option 'smoothing': available for mse are none"),
        ("cross_entropy:smoothing=much", "'much' is no value for smoothing"),
        ("cross_entropy:smoothing=1.5", "label_smoothing"),
        ("cross_entropy:weights=1/-2", "is no value for weights"),
        ("contrastive:temperature=0", "temperature"),
    ],
)
def test_wrong_loss_is_refused_with_what_is_known(text, told):
    with pytest.raises(OptionError) as error:
        parse_loss(text)
    assert told in str(error.value)


def test_class_weights_of_another_number_are_refused(learn):
    with pytest.raises(OptionError, match="3 class weights are given: the model has 5 classes"):
        learn("mlp", "head", "cross_entropy:weights=1/2/3")


def test_options_are_read():
    loss = parse_loss("cross_entropy:smoothing=0.1,weights=1/2,ignore=-1,shift")
    assert (loss.label_smoothing, loss.class_weights, loss.ignore_index, loss.shift) == (0.1, (1.0, 2.0), -1, True)
    assert np.isclose(parse_loss("contrastive:temperature=0.5").temperature, 0.5)
