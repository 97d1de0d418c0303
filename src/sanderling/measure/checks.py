"""What a verification answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Check(BaseModel):
    """One thing that was checked, whether it holds, and the numbers behind it."""

    model_config = ConfigDict(frozen=True)

    name: str
    passed: bool
    detail: str
