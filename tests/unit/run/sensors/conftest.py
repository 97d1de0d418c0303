from __future__ import annotations

import pytest


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder for fakes of vendors' programs, which comes first on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder
