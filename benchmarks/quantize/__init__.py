"""Quantisation against what it promises.

budget    how often the search for mixed precision accepts a form that misses the budget, simulated:
          ``python -m benchmarks.quantize.budget``
"""
