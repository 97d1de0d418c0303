"""Quantisation against what it promises.

training  compares INT8 with and without training on Fashion-MNIST, into ``training.json``
budget    how often the search for mixed precision accepts a form that misses the budget, simulated:
          ``python -m benchmarks.quantize.budget``
"""
