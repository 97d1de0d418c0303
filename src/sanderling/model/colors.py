"""How video standards make colours of luma and chroma, and what grey is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VideoStandard:
    """What defines a standard.

    Attributes:
        red: its share in luma.
        blue: its share in luma; green has the rest.
        narrow: luma has 219 steps from 16 on, chroma has 224; otherwise each has 255. Luma below counts as 16.
    """

    red: float
    blue: float
    narrow: bool

    @property
    def rows(self) -> tuple[tuple[float, float, float, float], ...]:
        """Red, green and blue as factors of Y, U and V and a constant, all in levels of 8 bits.

        Source: ITU-R BT.601 and BT.709, Y = red R + (1 - red - blue) G + blue B.
        """
        luma, chroma, low = (255 / 219, 255 / 224, 16) if self.narrow else (1.0, 1.0, 0)
        red_v, blue_u = 2 * (1 - self.red) * chroma, 2 * (1 - self.blue) * chroma
        green = 1 - self.red - self.blue
        green_u, green_v = -self.blue * blue_u / green, -self.red * red_v / green
        factors = ((luma, 0.0, red_v), (luma, green_u, green_v), (luma, blue_u, 0.0))
        return tuple((y, u, v, -y * low - (u + v) * 128) for y, u, v in factors)


VIDEO_STANDARDS = {
    "bt601-narrow": VideoStandard(0.299, 0.114, narrow=True),
    "bt601-wide": VideoStandard(0.299, 0.114, narrow=False),
    "bt709-narrow": VideoStandard(0.2126, 0.0722, narrow=True),
}
DEFAULT_STANDARD = "bt601-narrow"
GRAY_SHARES = (0.299, 0.587, 0.114)
"""Of red, green and blue in the grey of a package: that of BT.601, as Pillow has it."""
