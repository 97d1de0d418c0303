"""INT8 quality: `training.py` compares INT8 with and without training on Fashion-MNIST, into `training.json`."""
