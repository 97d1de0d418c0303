"""From a PyTorch module to a task that a device can train, and from what it learned back to a package."""
