"""The build's numbers: INT8 against FP32 (speed, size, memory, accuracy), build time and memory, start-up.

`data.py` gathers photos and Fashion-MNIST arrays, `cases.py` names the models, `run.py` measures and writes
`results.json`, `table.py` turns that into `docs/benchmarks.md`.
"""
