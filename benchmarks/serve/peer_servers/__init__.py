"""How the peers serve the same graph. Each file runs in its peer's own environment, without Sanderling."""
