"""Packages of models with several branches: what a factory of branches returns, and how they are built."""

from sanderling.workshop.multimodal.branches import Branch, BranchedModel

__all__ = ["Branch", "BranchedModel"]
