"""The page of learning's numbers says what its numbers say."""

import pytest

from benchmarks.learn.statistics import mean_interval
from benchmarks.learn.table import render

MACHINE = {
    "processor": "a processor",
    "cores": 2,
    "cpu_features": ["avx2"],
    "memory_bytes": 8e9,
    "system": "Linux",
    "python": "3.11",
    "versions": {"numpy": "2.0"},
}


def part(name, value, machine=MACHINE):
    return {
        "command": f"python -m benchmarks.learn.run --only {name}",
        "machine": machine,
        "seconds": 9,
        "value": value,
    }


def spoken():
    share = {"mean": 0.7, "half_interval": 0.05}
    found = dict.fromkeys(("source_before", "target_before", "target_after", "gap_closed"), share)
    run = {"seconds": 12.4}
    return {
        "words": 12,
        "utterances": 48,
        "played": 5,
        "replayed": 192,
        "test_voices": 11,
        "trainable": "full",
        "accents": {"en-029": {**found, "forgotten_points": {"mean": 0.5, "half_interval": 0.1}, "runs": [run, run]}},
    }


def memory():
    peaks = {"head/infer": 100e6, "head/train": 150e6, "head/features": 104e6, "lora/infer": 100e6, "lora/train": 130e6}
    peaks |= {"lora/torch": 400e6, "full/infer": 100e6, "full/train": 300e6, "full/torch": 500e6}
    return {"model": "MiniLM", "batch": 8, "steps": 4, "repeats": 3, "peak_bytes": peaks}


def test_accent_is_a_row_with_its_intervals():
    page = render({"spoken": part("spoken", spoken())})
    assert "| Caribbean (`en-029`) | 2 | 70.0 ± 5.0 % |" in page
    assert "0.5 ± 0.1 points" in page
    assert "12 s" in page


def test_memory_is_told_above_inference_and_against_all_of_the_model():
    page = render({"memory": part("memory", memory())})
    assert "| last layer, on cached features | 104 MB |" in page
    assert "| 4 MB | 98% less |" in page
    assert "| LoRA | 130 MB | 400 MB | 0.33 | 100 MB | 30 MB | 85% less |" in page


def test_parts_that_were_not_measured_are_left_out_and_one_machine_is_named_once():
    page = render({"spoken": part("spoken", spoken()), "memory": part("memory", memory())})
    assert "## Gradients" not in page
    assert page.count("Machine: a processor") == 1
    other = part("memory", memory(), {**MACHINE, "processor": "another"})
    assert render({"spoken": part("spoken", spoken()), "memory": other}).count("Machine: ") == 2


def test_refused_privacy_says_why():
    assert "Refused: no route." in render({"private": part("private", {"refused": "no route"})})


def test_interval_of_equal_values_is_zero():
    assert mean_interval([0.5, 0.5, 0.5]) == {"mean": 0.5, "half_interval": 0.0}
    assert mean_interval([0.0, 1.0])["half_interval"] == pytest.approx(12.706 * 0.5)
