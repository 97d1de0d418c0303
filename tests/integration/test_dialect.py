"""The network for spoken words: its spectrogram, its weights, and what an accent costs it."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.zoo import dialect_data  # noqa: E402 - the network needs torch
from benchmarks.zoo.dialect import FFT, HOP, WINDOW, dialect, mel_bands  # noqa: E402
from benchmarks.zoo.train_dialect import augment, measure_accuracy, warp_matrices  # noqa: E402
from benchmarks.zoo.training import WEIGHTS_FOLDER, read_records  # noqa: E402

WEIGHTS = WEIGHTS_FOLDER / "dialect.safetensors"
needs_espeak = pytest.mark.skipif(not dialect_data.installed(), reason="espeak-ng is not installed")


@pytest.fixture(scope="module")
def network():
    from safetensors.torch import load_file

    network = dialect()
    network.load_state_dict(load_file(WEIGHTS))
    return network


def test_spectrogram_is_that_of_a_fourier_transform(network):
    sound = np.random.default_rng(0).standard_normal((2, 16_000)).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW, axis=1)[:, ::HOP] * np.hanning(WINDOW + 1)[:-1]
    energy = np.abs(np.fft.rfft(frames, FFT)) ** 2 @ mel_bands().T  # (2, 98, 40)
    logarithm = np.log(energy + 1e-4).transpose(0, 2, 1)
    expected = (logarithm - logarithm.mean((1, 2), keepdims=True)) / 3
    with torch.no_grad():
        found = network.spectrogram(torch.from_numpy(sound))
    np.testing.assert_allclose(found.numpy()[:, 0], expected, atol=1e-3)


def test_loudness_makes_no_difference(network):
    sound = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 16_000)).astype(np.float32))
    with torch.no_grad():
        assert torch.allclose(network(sound), network(3 * sound), atol=1e-2)


def test_committed_weights_are_small_and_fit(network):
    assert WEIGHTS.stat().st_size < 1_000_000
    record = read_records()["dialect"]
    assert sum(parameter.numel() for parameter in network.parameters()) == record["parameters"]


def test_stretching_by_one_changes_nothing_and_masks_are_in_bounds():
    batch = np.random.default_rng(0).standard_normal((8, 40, 98)).astype(np.float32)
    assert augment(batch, warp_matrices(), np.random.default_rng(0)).shape == batch.shape
    np.testing.assert_array_equal(warp_matrices((1.0,))[0], np.eye(40, dtype=np.float32))


@needs_espeak
def test_same_utterance_sounds_the_same_and_another_voice_does_not():
    said = dialect_data.Utterance("en-us", "m3", "left", 150, 50)
    first, again = dialect_data.synthesize(said), dialect_data.synthesize(said)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first).max() == 1
    other = dialect_data.synthesize(dialect_data.Utterance("en-us", "f2", "left", 150, 50))
    assert len(other) != len(first) or not np.array_equal(other, first)


@needs_espeak
def test_american_words_of_new_voices_are_recognised_and_caribbean_ones_less(network):
    def accuracy(accent):
        generator = np.random.default_rng(7)
        said = dialect_data.utterances(accent, dialect_data.TEST_VOICES[:4], 1, generator)
        return measure_accuracy(network, dialect_data.record(said, generator))

    american, caribbean = accuracy("en-us"), accuracy("en-029")
    assert american > 0.9
    assert caribbean < american - 0.15


@needs_espeak
def test_written_folder_is_read_as_samples_with_the_words_as_labels(tmp_path):
    from sanderling.core.progress import Silent
    from sanderling.core.tensor import TensorSpec
    from sanderling.measure.samples import SampleReader
    from sanderling.model.sound import SoundSpec

    generator = np.random.default_rng(0)
    said = [dialect_data.Utterance("en-us", "m3", word, 160, 50) for word in dialect_data.WORDS[:3]]
    recordings = dialect_data.record(said, generator)
    spec = TensorSpec(name="sound", dtype="float32", shape=("batch", 16_000))
    heard = SoundSpec(sample_rate_hz=16_000, length=16_000)
    reader = SampleReader((spec,), None, dialect_data.WORDS, Silent(), heard)
    samples = reader.read(dialect_data.write_folder(tmp_path, recordings))
    order = np.argsort(dialect_data.WORDS[:3])
    assert samples.labels.tolist() == order.tolist()
    np.testing.assert_allclose(samples.inputs["sound"], recordings.sounds[order], atol=1e-4)
