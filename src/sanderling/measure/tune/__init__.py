"""The choice with proof: candidates are checked against golden vectors, then race until the order is clear."""

from sanderling.measure.tune.tuning import parse_objective, tune
from sanderling.model.tuning import TuneResult

__all__ = ["TuneResult", "parse_objective", "tune"]
