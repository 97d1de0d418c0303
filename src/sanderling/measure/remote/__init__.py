"""Measuring on a device that this machine reaches: over ssh, or over hdc (OpenHarmony)."""
