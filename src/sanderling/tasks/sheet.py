"""A page with pictures that were found: one file, the pictures inside it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path

from sanderling.core.drawing import page_style
from sanderling.core.errors import DataError, UnavailableError, first_line
from sanderling.tasks.matching import Match

_SIDE_PX = 320
_GRID = "display:grid;grid-template-columns:repeat(auto-fill,minmax(180px,1fr));gap:16px"


def picture_sheet(text: str, matches: Sequence[Match]) -> str:
    """Return the page as one HTML document.

    Args:
        text: that was searched for.
        matches: pictures in their order.

    Raises:
        DataError: a picture cannot be read any more.
        UnavailableError: Pillow is not installed.
    """
    figures = "\n".join(
        f'<figure style="margin:0"><img style="width:100%" alt="" '
        f'src="data:image/jpeg;base64,{_small(Path(found.file))}">'
        f"<figcaption>{place}. {escape(Path(found.file).name)}<br>{_told(found)}</figcaption></figure>"
        for place, found in enumerate(matches, 1)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(text)}</title>\n'
        f"<style>\n{page_style()}\n</style>\n</head>\n<body>\n<main>\n<h1>{escape(text)}</h1>\n"
        f'<div style="{_GRID}">\n{figures}\n</div>\n</main>\n</body>\n</html>\n'
    )


def _told(found: Match) -> str:
    share = "" if found.score is None else f", score {100 * found.score:.1f} %"
    return f"cosine {found.cosine:.3f}{share}"


def _small(path: Path) -> str:
    """A picture of at most 320 pixels a side as JPEG, in base64."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise UnavailableError("pictures need Pillow: pip install 'sanderling[vision]'") from error
    try:
        with Image.open(path) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:
        raise DataError(f"{path} is not a readable picture: {first_line(error)}") from error
    image.thumbnail((_SIDE_PX, _SIDE_PX))
    sink = BytesIO()
    image.save(sink, "JPEG", quality=85)
    return base64.b64encode(sink.getvalue()).decode()
