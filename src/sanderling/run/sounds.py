"""Sounds from WAV files to tensors, on the host.

The standard library's ``wave`` reads integers alone, and before Python 3.12 no extensible header, which is what
recorders of 24 bits write. So the chunks are read here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from sanderling.core.errors import DataError, UnavailableError
from sanderling.core.tensor import Array
from sanderling.model.sound import HIGHEST_RATE_HZ, LOWEST_RATE_HZ, SoundSpec

SOUND_SUFFIXES = (".wav", ".wave")
_SIZE_LIMIT_BYTES = 64 << 20
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_MOST_CHANNELS = 64
# What a writer leaves in the header that cannot go back to it, as into a pipe: zero, or close to the largest number.
_UNKNOWN_SIZE = 0x7FFF0000

Amplitudes = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sound:
    """A recording.

    Attributes:
        amplitudes: float32, shape (frames, channels); integers are scaled to [-1, 1).
        sample_rate_hz: frames a second.
    """

    amplitudes: Amplitudes
    sample_rate_hz: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return len(self.amplitudes) / self.sample_rate_hz


@dataclass(frozen=True)
class _Format:
    kind: int
    channels: int
    sample_rate_hz: int
    bits: int


def read_sound(path: Path | BinaryIO, spec: SoundSpec) -> Amplitudes:
    """Read a WAV file and make it the model's input: one channel, its sample rate, its length.

    Returns:
        float32, shape (spec.length,).

    Raises:
        DataError: the file is missing, no WAV, cut short, too large, empty, or has values that are not finite.
        UnavailableError: it has another sample rate, and what resamples is not installed.
    """
    return fit_sound(read_wav(path), spec)


def fit_sound(sound: Sound, spec: SoundSpec) -> Amplitudes:
    """Mix to one channel, resample, and centre in the model's length: cut, or filled up with silence.

    Raises:
        UnavailableError: see ``read_sound``.
    """
    mono = resample(sound.amplitudes.mean(axis=1), sound.sample_rate_hz, spec.sample_rate_hz)
    if len(mono) >= spec.length:
        start = (len(mono) - spec.length) // 2
        return mono[start : start + spec.length]
    before = (spec.length - len(mono)) // 2
    return np.pad(mono, (before, spec.length - len(mono) - before))


def resample(mono: Amplitudes, from_hz: int, to_hz: int) -> Amplitudes:
    """Change the sample rate by SciPy's polyphase filter, which keeps what both rates can hold.

    Args:
        mono: float32, shape (frames,).
        from_hz: sample rate of ``mono``.
        to_hz: sample rate of the result.

    Raises:
        UnavailableError: the rates differ, and SciPy is not installed.
    """
    if from_hz == to_hz:
        return mono
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise UnavailableError(
            f"a sound of {from_hz} Hz for a model of {to_hz} Hz needs SciPy: pip install 'sanderling[sound]', or "
            f"convert the files to {to_hz} Hz"
        ) from error
    divisor = math.gcd(from_hz, to_hz)
    changed: Amplitudes = resample_poly(mono, to_hz // divisor, from_hz // divisor).astype(np.float32)
    return changed


def read_wav(path: Path | BinaryIO) -> Sound:
    """Read a WAV file: 8, 16, 24 or 32 bits of PCM, or 32 or 64 bits of float; up to 64 MiB.

    Raises:
        DataError: see ``read_sound``.
    """
    name = str(path) if isinstance(path, Path) else "the sound"
    content = _content(path, name)
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise DataError(f"{name} is no WAV file: it starts with {content[:12]!r}")
    form = data = None
    for kind, chunk in _chunks(content, name):
        if kind == b"fmt ":
            form = _format(chunk, name)
        elif kind == b"data":
            data = chunk
            break
    if form is None or data is None:
        raise DataError(f"{name} is no readable WAV file: it has no {'format' if form is None else 'data'}")
    amplitudes = _amplitudes(data, form)
    if not len(amplitudes):
        raise DataError(f"{name} is a sound without a single sample")
    if not np.isfinite(amplitudes).all():
        raise DataError(f"{name} has NaN or infinite amplitudes")
    return Sound(amplitudes, form.sample_rate_hz)


def write_wav(path: Path, mono: Array, sample_rate_hz: int) -> None:
    """Write one channel as 16 bits of PCM; amplitudes beyond [-1, 1] are clipped."""
    import wave

    codes = np.round(np.clip(mono, -1.0, 1.0) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(sample_rate_hz)
        opened.writeframes(codes.tobytes())


def _content(path: Path | BinaryIO, name: str) -> bytes:
    """The whole file, unless it is larger than any sound that is read here."""
    try:
        if isinstance(path, Path):
            with path.open("rb") as stream:
                content = stream.read(_SIZE_LIMIT_BYTES + 1)
        else:
            content = path.read(_SIZE_LIMIT_BYTES + 1)
    except FileNotFoundError as error:
        raise DataError(f"{name} does not exist: expected a WAV file") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror}") from error
    if len(content) > _SIZE_LIMIT_BYTES:
        raise DataError(f"{name} is larger than {_SIZE_LIMIT_BYTES >> 20} MiB: cut it into shorter sounds")
    return content


def _chunks(content: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Name and bytes of each chunk.

    Raises:
        DataError: a chunk is longer than the file, and no stream's.
    """
    place = 12
    while place + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, place)
        place += 8
        rest = len(content) - place
        streamed = kind == b"data" and (size >= _UNKNOWN_SIZE or (size == 0 and rest > 0))
        if size > rest and not streamed:
            raise DataError(f"{name} is cut short: {rest} of {size} bytes of its {kind.decode('latin-1').strip()}")
        size = rest if streamed else size
        yield kind, content[place : place + size]
        place += size + size % 2


def _format(chunk: bytes, name: str) -> _Format:
    if len(chunk) < 16:
        raise DataError(f"{name} is no readable WAV file: its format has {len(chunk)} bytes")
    kind, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        kind = struct.unpack_from("<H", chunk, 24)[0]  # the first bytes of the sub-format's identifier
    if bits not in _BITS.get(kind, ()):
        raise DataError(
            f"{name} has {bits} bits of format {kind}: expected PCM (1) of 8, 16, 24 or 32 bits, or float (3) of 32 or "
            "64; convert it"
        )
    if not LOWEST_RATE_HZ <= rate <= HIGHEST_RATE_HZ or not 1 <= channels <= _MOST_CHANNELS:
        raise DataError(
            f"{name} says {channels} channels of {rate} Hz: expected 1 to {_MOST_CHANNELS} of {LOWEST_RATE_HZ} to "
            f"{HIGHEST_RATE_HZ} Hz"
        )
    if block != channels * bits // 8:
        raise DataError(f"{name} says {block} bytes a frame: {channels} channels of {bits} bits have another number")
    return _Format(kind, channels, rate, bits)


def _amplitudes(data: bytes, form: _Format) -> Amplitudes:
    """float32 (frames, channels); an incomplete last frame is no frame."""
    width = form.bits // 8
    frames = len(data) // (width * form.channels)
    raw = data[: frames * width * form.channels]
    values: Amplitudes
    if form.kind == _FLOAT:
        with np.errstate(over="ignore"):  # infinite ones are refused by whoever asked
            values = np.frombuffer(raw, f"<f{width}").astype(np.float32)
    elif width == 1:  # the only one without a sign
        values = np.asarray((np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128, np.float32)
    elif width == 3:
        padded = np.zeros((frames * form.channels, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        values = (padded.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    else:
        values = np.asarray(np.frombuffer(raw, f"<i{width}") / 2.0 ** (form.bits - 1), np.float32)
    return values.reshape(frames, form.channels)
