"""Writes fashion_slice.npz: a part of Fashion-MNIST small enough to keep with the tests.

Run from the repository root::

    PYTHONPATH=. python tests/data/make_fashion_slice.py
"""

from pathlib import Path

import numpy as np

from benchmarks.zoo.fashion_data import load_fashion_mnist

CALIBRATION_COUNT = 512
TEST_COUNT = 2000
OUTPUT = Path(__file__).with_name("fashion_slice.npz")


def main() -> None:
    """Write the first training images for calibration and the first test images for accuracy."""
    calibration_images, calibration_labels = load_fashion_mnist("train")
    test_images, test_labels = load_fashion_mnist("t10k")
    np.savez_compressed(
        OUTPUT,
        calibration_images=calibration_images[:CALIBRATION_COUNT],  # uint8 (512, 28, 28)
        calibration_labels=calibration_labels[:CALIBRATION_COUNT],  # int64 (512,)
        test_images=test_images[:TEST_COUNT],  # uint8 (2000, 28, 28)
        test_labels=test_labels[:TEST_COUNT],  # int64 (2000,)
    )


if __name__ == "__main__":
    main()
