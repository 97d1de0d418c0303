"""A small task, trained in a cache folder of its own."""

import pytest

from sanderling.core.progress import Recorder, Silent
from sanderling.learn import Trainer
from tests.learning_tasks import make_task

pytest.importorskip("safetensors")


@pytest.fixture(scope="session")
def shared_task(tmp_path_factory):
    return make_task(tmp_path_factory.mktemp("task"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def task(shared_task):
    return shared_task


@pytest.fixture
def recorder():
    return Recorder(Silent())


@pytest.fixture
def new_trainer(task, recorder):
    """Make trainers that are closed at the end."""
    made = []

    def make(path=task, **options):
        made.append(Trainer(path, **{"threads": 1, "progress": recorder, "learning_rate": 0.05, **options}))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()
