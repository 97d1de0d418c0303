"""The guard: what is checked in results while a model runs, and what is kept of those that fail."""
