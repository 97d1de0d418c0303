"""Rewrites that must not change results: shapes, simplification passes, half precision."""
