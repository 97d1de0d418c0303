"""The target `ascend`: a model, its settings and the command line for `atc`, Huawei's compiler of Ascend chips."""

from sanderling.workshop.targets.ascend.target import TARGET

__all__ = ["TARGET"]
