from __future__ import annotations

from pathlib import Path

import pytest

from sanderling.api import build
from tests.models import save, sum_and_difference


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two inputs ``a`` and ``b`` and two outputs ``sum`` and ``difference``, any rows."""
    return _built(tmp_path_factory.mktemp("sums"), batch="N")


@pytest.fixture(scope="session")
def fixed_sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for calls of exactly four rows."""
    return _built(tmp_path_factory.mktemp("fixed"), batch=4)


def _built(folder: Path, *, batch: int | str) -> Path:
    build(save(sum_and_difference(batch=batch), folder / "sums.onnx"), folder / "sums.sdl", precision="fp32", repeats=1)
    return folder / "sums.sdl"
