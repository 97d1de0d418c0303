"""OpenCV, imported when it is first needed."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from sanderling.core.errors import UnavailableError


@cache
def opencv() -> Any:  # noqa: ANN401 - a module whose stubs are incomplete
    """The module ``cv2``.

    Raises:
        UnavailableError: it is not installed.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # what is wrong with a video is told by an error or an event
    os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")
    try:
        import cv2
    except ImportError as error:
        raise UnavailableError("frames, videos and cameras need OpenCV: pip install 'sanderling[vision]'") from error
    return cv2
