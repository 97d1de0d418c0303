"""A small network for spoken words: from a waveform to words, its mel spectrogram inside."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.zoo.dialect_data import SAMPLE_RATE_HZ, WORDS

WINDOW, HOP, FFT = 400, 160, 512  # samples: 25 ms, 10 ms
MELS = 40
LOWEST_HZ, HIGHEST_HZ = 60.0, 7600.0
WIDTH = 16
_FLOOR = 1e-4
_SPREAD = 3.0  # of log energies, so that the convolutions' input has a deviation of about 1


def dialect() -> nn.Module:
    """Build the network, untrained, in eval mode.

    Returns:
        Module from a waveform, float32 (N, 16000) at 16 kHz, to float32 logits (N, 12) of ``WORDS``.
    """
    return Dialect().eval()


class Dialect(nn.Module):
    """Log-mel spectrogram, five convolutions, the mean over time and frequency, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrogram = LogMel()
        self.body = nn.Sequential(
            _conv_bn_relu(1, WIDTH, stride=2),  # (N, 16, 20, 49)
            _conv_bn_relu(WIDTH, 2 * WIDTH, stride=2),  # (N, 32, 10, 25)
            _conv_bn_relu(2 * WIDTH, 2 * WIDTH),
            _conv_bn_relu(2 * WIDTH, 3 * WIDTH, stride=2),  # (N, 48, 5, 13)
            _conv_bn_relu(3 * WIDTH, 4 * WIDTH),
        )
        self.classifier = nn.Linear(4 * WIDTH, len(WORDS))

    def forward(self, sound: Tensor) -> Tensor:
        """Map waveforms (N, 16000) to logits (N, 12)."""
        return self.classify(self.spectrogram(sound))

    def classify(self, spectrograms: Tensor) -> Tensor:
        """Map spectrograms (N, 1, 40, 98) to logits (N, 12)."""
        logits: Tensor = self.classifier(self.body(spectrograms).mean((2, 3)))
        return logits


class LogMel(nn.Module):
    """The logarithm of a mel spectrogram; its tables are constants, not weights.

    The Fourier transform is a convolution with windowed sines and cosines: every engine has it, and the device feeds
    plain samples.

    Source: Davis and Mermelstein 1980 (mel bands); O'Shaughnessy 1987 (2595 · log10(1 + f / 700)).
    """

    waves: Tensor
    bands: Tensor

    def __init__(self) -> None:
        super().__init__()
        bands = mel_bands()
        heard = bands.any(axis=0)
        steps = 2 * np.pi / FFT * np.outer(np.flatnonzero(heard), np.arange(WINDOW))
        window = np.hanning(WINDOW + 1)[:-1]
        waves = np.concatenate([np.cos(steps) * window, np.sin(steps) * window])
        self.register_buffer("waves", torch.tensor(waves[:, None], dtype=torch.float32), persistent=False)
        self.register_buffer("bands", torch.tensor(bands[:, heard], dtype=torch.float32), persistent=False)

    def forward(self, sound: Tensor) -> Tensor:
        """Map waveforms (N, 16000) to spectrograms (N, 1, 40, 98) with mean 0."""
        waves = nn.functional.conv1d(sound.unsqueeze(1), self.waves, stride=HOP)
        real, imaginary = waves.chunk(2, dim=1)
        energy = self.bands @ (real * real + imaginary * imaginary)  # (N, 40, 98)
        logarithm = torch.log(energy + _FLOOR)
        return ((logarithm - logarithm.mean((1, 2), keepdim=True)) / _SPREAD).unsqueeze(1)


def mel_bands() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Triangles that overlap by half, evenly spread on the mel scale; float64, shape (40, FFT / 2 + 1)."""
    lowest, highest = (2595 * math.log10(1 + hertz / 700) for hertz in (LOWEST_HZ, HIGHEST_HZ))
    corners = 700 * (10 ** (np.linspace(lowest, highest, MELS + 2) / 2595) - 1)
    bins = np.arange(FFT // 2 + 1) * SAMPLE_RATE_HZ / FFT
    low, middle, high = (corners[start : start + MELS, None] for start in range(3))
    return np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))


def _conv_bn_relu(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )
