"""What targets write, held against what the package computes here."""
