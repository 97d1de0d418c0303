"""Gradients of whole networks against PyTorch's autograd: what `prepare` proves before it writes a task."""

import pytest

TOLERANCE = 1e-5
NETWORKS = ["mlp", "cnn", "depthwise", "resnet", "mobilenet_v3", "bert", "llama"]


OTHERS = [
    ("waves", "lora:r=2"),
    ("waves", "full"),
    ("pair", "full"),
    ("chunks", "full"),
]  # over time, of two inputs, split


@pytest.mark.parametrize(
    ("network", "trainable"),
    [(network, trainable) for network in NETWORKS for trainable in ("head", "lora:r=2", "full")] + OTHERS,
)
def test_gradients_are_autograd_and_each_sample_is_clipped_by_its_own_norm(learn, network, trainable):
    spec, folder, events = learn(network, trainable)
    assert spec.golden.error <= TOLERANCE
    assert spec.private.refused is None, events
    assert (folder / spec.private.file).is_file()
