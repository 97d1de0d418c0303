"""Programs that an export puts beside its files, for the device: they know nothing of Sanderling."""
