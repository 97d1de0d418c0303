from __future__ import annotations

import io
import struct
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sanderling.core.errors import DataError, UnavailableError
from sanderling.model.sound import SoundSpec
from sanderling.run import sounds
from sanderling.run.sounds import Sound, fit_sound, read_sound, read_wav, resample, write_wav
from tests.sounds import riff, tone, wav_bytes, write_tone

SPEC = SoundSpec(sample_rate_hz=16_000, length=100)
RAMP = np.arange(-4, 4) / 4


def read(content: bytes) -> Sound:
    return read_wav(io.BytesIO(content))


def complaint(content: bytes) -> str:
    with pytest.raises(DataError) as caught:
        read(content)
    return str(caught.value)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(
    ("bits", "floating"), [(8, False), (16, False), (24, False), (32, False), (32, True), (64, True)]
)
def test_every_form_of_wav_gives_its_amplitudes(bits, floating, extensible):
    sound = read(wav_bytes(RAMP, bits=bits, floating=floating, extensible=extensible))
    assert sound.amplitudes.dtype == np.float32
    assert sound.amplitudes[:, 0].tolist() == RAMP.tolist()
    assert sound.sample_rate_hz == 16_000


def test_channels_are_mixed_to_their_mean():
    stereo = np.stack([np.full(100, 0.5), np.full(100, 0.25)], axis=1)
    assert fit_sound(read(wav_bytes(stereo)), SPEC).tolist() == [0.375] * 100


def test_short_sound_stands_in_silence_and_long_one_keeps_its_middle():
    short = fit_sound(Sound(np.ones((10, 1), np.float32), 16_000), SPEC)
    assert np.flatnonzero(short).tolist() == list(range(45, 55))
    long = fit_sound(Sound(np.arange(200, dtype=np.float32)[:, None], 16_000), SPEC)
    assert long.tolist() == list(range(50, 150))


def test_other_sample_rate_keeps_the_tone():
    changed = resample(tone(22_050, 22_050).astype(np.float32), 22_050, 16_000)
    assert changed.dtype == np.float32
    assert len(changed) == 16_000
    np.testing.assert_allclose(changed[500:-500], tone(16_000, 16_000)[500:-500], atol=2e-3)


def test_tone_above_what_the_new_rate_holds_is_taken_out():
    high = np.sin(2 * np.pi * 10_000 * np.arange(44_100) / 44_100).astype(np.float32)
    assert np.abs(resample(high, 44_100, 16_000)[500:-500]).max() < 0.01


def test_other_sample_rate_without_scipy_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.signal", None)
    with pytest.raises(UnavailableError, match=r"22050 Hz for a model of 16000 Hz.*sanderling\[sound\]"):
        resample(np.zeros(8, np.float32), 22_050, 16_000)
    assert len(resample(np.zeros(8, np.float32), 16_000, 16_000)) == 8


def test_written_sound_is_read_as_it_was(tmp_path):
    wave = tone(100, 16_000).astype(np.float32)
    write_wav(tmp_path / "a.wav", wave, 16_000)
    np.testing.assert_allclose(read_sound(tmp_path / "a.wav", SPEC), wave, atol=1e-4)


def test_chunks_that_are_no_sound_are_passed_over():
    plain = wav_bytes(RAMP)
    form, data = plain[20:36], plain[44:]
    sound = read(riff((b"LIST", b"odd"), (b"fmt ", form), (b"fact", b"1234"), (b"data", data)))
    assert sound.amplitudes[:, 0].tolist() == RAMP.tolist()


@pytest.mark.parametrize("size", [0, 0x7FFFF000, 0xFFFFFFFF])
def test_sound_from_a_pipe_with_no_length_in_its_header_is_read_to_the_end(size):
    content = bytearray(wav_bytes(RAMP))
    content[40:44] = struct.pack("<I", size)
    assert len(read(bytes(content)).amplitudes) == len(RAMP)


def test_file_that_is_cut_short_is_an_error():
    assert "cut short: 6 of 16 bytes of its data" in complaint(wav_bytes(RAMP)[:-10])


def test_file_of_another_kind_is_an_error():
    assert "is no WAV file" in complaint(b"ID3\4 not a wave file at all")
    assert "is no WAV file" in complaint(b"")


def test_file_without_format_or_data_is_an_error():
    assert "it has no format" in complaint(riff((b"LIST", b"1234")))
    assert "it has no data" in complaint(wav_bytes(RAMP)[:36])
    assert "its format has 4 bytes" in complaint(riff((b"fmt ", b"1234"), (b"data", b"1234")))


def test_sound_without_samples_is_an_error():
    assert "without a single sample" in complaint(wav_bytes(np.zeros(0)))


def test_compressed_sound_is_an_error():
    form = struct.pack("<HHIIHH", 0x55, 1, 16_000, 16_000, 1, 8)  # MP3
    assert "8 bits of format 85: expected PCM" in complaint(riff((b"fmt ", form), (b"data", b"12")))


@pytest.mark.parametrize(("channels", "rate", "block"), [(0, 16_000, 0), (99, 16_000, 198), (1, 0, 2), (1, 1 << 31, 2)])
def test_impossible_channels_and_rates_are_errors(channels, rate, block):
    form = struct.pack("<HHIIHH", 1, channels, rate, 0, block, 16)
    assert "expected 1 to 64 of 1000 to 384000 Hz" in complaint(riff((b"fmt ", form), (b"data", b"12")))


def test_wrong_bytes_of_a_frame_are_an_error():
    form = struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 5, 16)
    assert "says 5 bytes a frame" in complaint(riff((b"fmt ", form), (b"data", b"12")))


def test_amplitudes_that_are_not_finite_are_an_error():
    assert "NaN" in complaint(wav_bytes(np.array([0.0, np.nan]), bits=32, floating=True))


def test_large_file_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(sounds, "_SIZE_LIMIT_BYTES", 1 << 20)
    assert "larger than 1 MiB" in complaint(b"RIFF" + bytes(1 << 20))


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_wav(tmp_path / "nothing.wav")
    with pytest.raises(DataError, match="cannot be read"):
        read_wav(tmp_path)


@given(st.binary(max_size=80), st.integers(0, 60))
def test_damaged_file_ends_in_an_error_of_ours_or_in_a_sound(garbage, place):
    content = bytearray(wav_bytes(RAMP))
    content[place : place + len(garbage)] = garbage
    try:
        sound = read(bytes(content))
    except DataError:
        return
    assert np.isfinite(sound.amplitudes).all()


def test_file_name_is_in_the_message(tmp_path):
    (write_tone(tmp_path / "w.wav")).write_bytes(b"x")
    with pytest.raises(DataError, match=r"w\.wav is no WAV file"):
        read_wav(tmp_path / "w.wav")
