"""A point of the accuracy–latency front that an earlier build kept, to take instead of searching again."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from sanderling.core.errors import OptionError
from sanderling.model.package import EVIDENCE, Package
from sanderling.workshop.evidence import Evidence, Search, SearchPoint
from sanderling.workshop.quantize.qdq import quantized_blocks
from sanderling.workshop.quantize.recipe import Quantized


def kept_point(path: Path | None, layers_float: int | None) -> SearchPoint | None:
    """The point with that many blocks in float of a package's search; None when none is asked for.

    Raises:
        PackageError: the package is broken.
        OptionError: one of the two is missing, the package holds no search, or its front has no such point.
    """
    if path is None and layers_float is None:
        return None
    if path is None or layers_float is None:
        raise OptionError("--mixed-from and --layers-float belong together: a package and a point of its front")
    search = _search(path)
    for point in search.points:
        if len(point.float_blocks) == layers_float:
            return point
    known = ", ".join(str(len(point.float_blocks)) for point in search.points)
    raise OptionError(f"the front of {path} has no point with {layers_float} blocks in float: available are {known}")


def known_blocks(point: SearchPoint, quantized: Quantized) -> frozenset[str]:
    """The point's blocks, which must be blocks of this graph.

    Raises:
        OptionError: they are another model's.
    """
    own = {block.name for block in quantized_blocks(quantized.model, quantized.scheme)}
    foreign = sorted(set(point.float_blocks) - own)
    if foreign:
        raise OptionError(f"--mixed-from is a package of another model: this one has no block '{foreign[0]}'")
    return frozenset(point.float_blocks)


def _search(path: Path) -> Search:
    package = Package.open(path)
    try:
        evidence = Evidence.model_validate_json(package.file(EVIDENCE).read_bytes())
    except ValidationError as error:
        raise OptionError(f"the evidence of {path} is of another version: build it again") from error
    if evidence.quantization is None or evidence.quantization.search is None:
        raise OptionError(f"{path} holds no search for mixed precision: its INT8 kept the budget, or there was none")
    return evidence.quantization.search
