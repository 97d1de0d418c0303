"""WAV files of every form, written byte by byte, so that no test reads what the code under test wrote."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

import numpy as np

_FLOAT_GUID = struct.pack("<H", 3) + uuid.UUID("00000000-0000-0010-8000-00aa00389b71").bytes_le[2:]


def wav_bytes(
    values: np.ndarray, *, bits: int = 16, rate_hz: int = 16_000, floating: bool = False, extensible: bool = False
) -> bytes:
    """A WAV of amplitudes in [-1, 1), shape (frames,) or (frames, channels)."""
    frames = values[:, None] if values.ndim == 1 else values
    data = _encoded(frames, bits, floating)
    kind = 0xFFFE if extensible else 3 if floating else 1
    block = frames.shape[1] * bits // 8
    form = struct.pack("<HHIIHH", kind, frames.shape[1], rate_hz, rate_hz * block, block, bits)
    if extensible:
        pcm = struct.pack("<H", 1) + _FLOAT_GUID[2:]
        form += struct.pack("<HHI", 22, bits, 0) + (_FLOAT_GUID if floating else pcm)
    return riff((b"fmt ", form), (b"data", data))


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """A RIFF file of chunks, each padded to an even length."""
    body = b"".join(name + struct.pack("<I", len(chunk)) + chunk + b"\0" * (len(chunk) % 2) for name, chunk in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def write_tone(path: Path, *, frames: int = 16_000, rate_hz: int = 16_000, amplitude: float = 0.5) -> Path:
    """A sine of 440 Hz in 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wav_bytes(tone(frames, rate_hz, amplitude), rate_hz=rate_hz))
    return path


def tone(frames: int, rate_hz: int, amplitude: float = 0.5) -> np.ndarray:
    """A sine of 440 Hz, float64."""
    return amplitude * np.sin(2 * np.pi * 440 * np.arange(frames) / rate_hz)


def _encoded(frames: np.ndarray, bits: int, floating: bool) -> bytes:
    if floating:
        return frames.astype(f"<f{bits // 8}").tobytes()
    if bits == 8:
        return (np.round(frames * 128) + 128).astype(np.uint8).tobytes()
    codes = np.round(frames * 2.0 ** (bits - 1)).astype("<i8")
    return b"".join(int(code).to_bytes(bits // 8, "little", signed=True) for code in codes.ravel())
