"""Benchmarks: each writes JSON with its conditions; the tables in the documents are made from that JSON."""
