"""Spoken words in several English accents, synthesised by Debian's `espeak-ng`; no recordings of people.

A voice is one of espeak-ng's variants, which change pitch, formants and timbre; an accent is one of its languages,
which change vowels, consonants and lengths. Each utterance stands at a random place of one second of noise. ::

    python -m benchmarks.zoo.dialect_data FOLDER [--accent en-029] [--voice f2]

writes what a device hears of one voice, with American words of voices that it knows (``FOLDER/heard``), what other
voices say (``FOLDER/others``), each with a folder for each word, and the words (``FOLDER/words.txt``).
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sanderling.core.machine import usable_cores
from sanderling.run.sounds import read_wav, resample, write_wav

# Chosen of 34 words because accents bring them close to each other ("up" to "off", "start" to "hot", "left" to "late"):
# with words that no accent confuses there would be nothing to learn.
WORDS = ("up", "off", "start", "stop", "hot", "left", "late", "work", "door", "go", "four", "home")
SOURCE_ACCENT = "en-us"
CARIBBEAN = "en-029"
ACCENTS = {
    "en-us": "America",
    "en-029": "Caribbean",
    "en-gb-scotland": "Scotland",
    "en-gb-x-rp": "England, Received Pronunciation",
}
SAMPLE_RATE_HZ = 16_000
LENGTH = SAMPLE_RATE_HZ
SLOWEST_WPM, FASTEST_WPM = 110, 205
LOWEST_PITCH, HIGHEST_PITCH = 20, 75
NOISE_DB = (8.0, 25.0)  # the word's power over the noise's

TRAINING_VOICES = (
    "m1", "m2", "m4", "m6", "m8", "f1", "f3", "f5", "klatt", "klatt2", "klatt4", "steph", "Andy", "linda", "adam",
    "anika", "Alex", "Alicia", "Denis", "Diogo", "Gene", "Jacky", "Lee", "Marco", "Mario", "antonio", "benjamin",
    "caleb", "david", "grandma", "iven", "john", "marcelo", "max", "michel", "miguel", "norbert", "pablo", "paul",
    "pedro", "quincy", "rob", "sandro", "shelby", "travis", "zac",
)  # fmt: skip
TEST_VOICES = ("m3", "m5", "m7", "f2", "f4", "Annie", "edward", "belinda", "Michael", "Hugo", "victor", "aunty")

HEARD_PER_WORD = 4  # 48 utterances
REPLAYED_VOICES = 16  # one utterance of each word by each
# How fast each utterance is played besides: what a smaller or a larger person would sound like.
PLAYED = (0.86, 0.93, 1.0, 1.08, 1.16)
_OTHERS_PER_WORD = 3

Amplitudes = NDArray[np.float32]


@dataclass(frozen=True)
class Utterance:
    """One word as it is said.

    Attributes:
        accent: language of espeak-ng.
        voice: its variant.
        word: one of ``WORDS``.
        speed_wpm: words a minute.
        pitch: 0 to 99, 50 is the voice's own.
    """

    accent: str
    voice: str
    word: str
    speed_wpm: int
    pitch: int

    @property
    def label(self) -> int:
        """Position of the word in ``WORDS``."""
        return WORDS.index(self.word)


@dataclass(frozen=True)
class Recordings:
    """Utterances and how they sound.

    Attributes:
        sounds: float32, shape (n, 16000).
        labels: int64, shape (n,).
        utterances: what is said, n of them.
    """

    sounds: Amplitudes
    labels: NDArray[np.int64]
    utterances: tuple[Utterance, ...]


def installed() -> bool:
    """Whether ``espeak-ng`` can be called."""
    return shutil.which("espeak-ng") is not None


def utterances(accent: str, voices: Iterable[str], per_word: int, generator: np.random.Generator) -> list[Utterance]:
    """Let each voice say each word ``per_word`` times, at another speed and pitch each."""
    return [
        Utterance(
            accent,
            voice,
            word,
            int(generator.integers(SLOWEST_WPM, FASTEST_WPM + 1)),
            int(generator.integers(LOWEST_PITCH, HIGHEST_PITCH + 1)),
        )
        for voice in voices
        for word in WORDS
        for _ in range(per_word)
    ]


def record(said: Sequence[Utterance], generator: np.random.Generator) -> Recordings:
    """Synthesise utterances and put each into one second of noise.

    Raises:
        FileNotFoundError: ``espeak-ng`` is not installed.
        ValueError: it failed.
    """
    sounds = np.stack([with_noise(one, generator) for one in speak(said)])
    return Recordings(sounds, np.array([one.label for one in said], np.int64), tuple(said))


def speak(said: Sequence[Utterance]) -> list[Amplitudes]:
    """Synthesise many utterances at once; see ``synthesize``."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(synthesize, said))


def synthesize(utterance: Utterance) -> Amplitudes:
    """Let espeak-ng say a word.

    Returns:
        float32, shape (samples,), at 16 kHz, largest amplitude 1, without the silence around it; at most one second.

    Raises:
        FileNotFoundError: ``espeak-ng`` is not installed.
        ValueError: it failed.
    """
    if not installed():
        raise FileNotFoundError("espeak-ng not found; install it with: apt-get install espeak-ng")
    voice = f"{utterance.accent}+{utterance.voice}"
    command = ["espeak-ng", "-v", voice, "-s", str(utterance.speed_wpm), "-p", str(utterance.pitch), "--stdout"]
    done = subprocess.run([*command, utterance.word], capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"espeak-ng ended with {done.returncode} for {utterance}: {done.stderr.decode()[:200]}")
    sound = read_wav(io.BytesIO(done.stdout))
    mono = resample(sound.amplitudes[:, 0], sound.sample_rate_hz, SAMPLE_RATE_HZ)
    loud = np.flatnonzero(np.abs(mono) > 0.01 * np.abs(mono).max())
    mono = mono[loud[0] : loud[-1] + 1][:LENGTH]
    loudest: Amplitudes = mono / np.abs(mono).max()
    return loudest


def with_noise(word: Amplitudes, generator: np.random.Generator) -> Amplitudes:
    """Put a word at a random place of one second of noise, 8 to 25 dB below it and of a random colour."""
    noise = generator.standard_normal(LENGTH + 1).astype(np.float32)
    noise = noise[1:] + np.float32(generator.uniform(0, 0.9)) * noise[:-1]
    decibels = generator.uniform(*NOISE_DB)
    noise *= np.sqrt((word**2).mean() / (noise**2).mean() * 10 ** (-decibels / 10))
    start = int(generator.integers(0, LENGTH - len(word) + 1))
    noise[start : start + len(word)] += word
    heard: Amplitudes = (noise * np.float32(generator.uniform(0.2, 0.6) / np.abs(noise).max())).astype(np.float32)
    return heard


def played(word: Amplitudes, speed: float) -> Amplitudes:
    """A word played faster or slower, so that length, pitch and formants change together; at most one second."""
    places = np.arange(0, len(word) - 1, speed)[:LENGTH]
    result: Amplitudes = np.interp(places, np.arange(len(word)), word).astype(np.float32)
    return result


def write_folder(folder: Path, recordings: Recordings, *, name: str = "") -> Path:
    """Write a folder of WAV files for each word; ``name`` ends the names of the files."""
    for index, (sound, said) in enumerate(zip(recordings.sounds, recordings.utterances, strict=True)):
        place = folder / said.word
        place.mkdir(parents=True, exist_ok=True)
        write_wav(place / f"{index:04d}-{said.accent}-{said.voice}{name}.wav", sound, SAMPLE_RATE_HZ)
    return folder


def write_adaptation(folder: Path, accent: str, voice: str, seed: int = 0) -> Path:
    """48 utterances of one voice, each played at five speeds, and 192 American ones by voices of the training.

    Source: Ko et al. 2015, "Audio Augmentation for Speech Recognition" (speed perturbation).
    """
    generator = np.random.default_rng(seed)
    said = utterances(accent, [voice], HEARD_PER_WORD, generator)
    spoken = speak(said)
    for speed in PLAYED:
        sounds = np.stack([with_noise(played(word, speed), generator) for word in spoken])
        labels = np.array([one.label for one in said], np.int64)
        write_folder(folder, Recordings(sounds, labels, tuple(said)), name=f"-at-{speed:g}")
    known = generator.choice(TRAINING_VOICES, REPLAYED_VOICES, replace=False)
    return write_folder(folder, record(utterances(SOURCE_ACCENT, known, 1, generator), generator))


def other_voices(accent: str) -> Recordings:
    """What voices say that the network was not trained on, 36 utterances each."""
    generator = np.random.default_rng(1_000)
    return record(utterances(accent, TEST_VOICES, _OTHERS_PER_WORD, generator), generator)


def without_voice(recordings: Recordings, voice: str) -> Recordings:
    """All but one voice."""
    kept = [index for index, said in enumerate(recordings.utterances) if said.voice != voice]
    said = tuple(recordings.utterances[index] for index in kept)
    return Recordings(recordings.sounds[kept], recordings.labels[kept], said)


def write_words(path: Path) -> Path:
    """The names of the classes, one a line."""
    path.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Write data to adapt with and to test on."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.dialect_data", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accent", choices=ACCENTS, default=CARIBBEAN)
    parser.add_argument("--voice", choices=TEST_VOICES, default=TEST_VOICES[0])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_words(arguments.folder / "words.txt")
    write_adaptation(arguments.folder / "heard", arguments.accent, arguments.voice)
    others = without_voice(other_voices(arguments.accent), arguments.voice)
    write_folder(arguments.folder / "others", others)
    print(f"{arguments.folder}: heard, others ({len(others.labels)} words), words.txt")


if __name__ == "__main__":
    main()
