"""Pictures, cameras and streams on the device: frames, how they become a model's input, and what comes of it."""
