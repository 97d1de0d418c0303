"""Language models on the device: engines, sampling, conversations."""
