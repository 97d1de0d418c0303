"""INT8 quality: what it costs in accuracy, with mixed precision under a budget, beside NNCF, and with training.

`cases.py` names models, data and budgets, `run.py` builds them and writes `results.json`, `peer.py` lets NNCF do the
same by `nncf_control.py`, `judging.py` judges both alike, `table.py` turns the numbers into
`docs/benchmarks-quantize.md`. `training.py` compares INT8 with and without training on Fashion-MNIST, into
`training.json`. `budget.py` simulates how often the search accepts a form that misses the budget.
"""
