from functools import cache
from pathlib import Path

import pytest

from sanderling.core.progress import Recorder, Silent
from sanderling.workshop.learning.forward import read_forward
from sanderling.workshop.learning.options import LearningOptions, parse_loss
from sanderling.workshop.learning.prepare import write_learning
from sanderling.workshop.learning.trace import trace
from sanderling.workshop.options import BuildOptions, parse_input
from tests import learning_modules


@cache
def traced(name):
    """A network of ``learning_modules`` and its exported forward pass, once for all tests."""
    options = BuildOptions(
        source=f"tests.learning_modules:{name}",
        output=Path("unused.sdl"),
        inputs=tuple(parse_input(text) for text in learning_modules.INPUTS[name]),
        dynamic_batch=True,
    )
    return trace(options)


@pytest.fixture
def learn(tmp_path):
    """Write the graphs of a network in a folder; gives the spec, the folder and what was told."""

    def write(name, trainable="full", loss="cross_entropy", **options):
        source = traced(name)
        progress = Recorder(Silent())
        forward = read_forward(source.model, source.parameters)
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        learning = LearningOptions(parse_loss(loss), trainable, **options)
        return write_learning(folder, source, forward, learning, 0, progress), folder, progress.events

    return write
