"""The choice's numbers: the plan against ONNX Runtime's FP32, and the race against measuring everything.

`run.py` measures and writes `results.json`; `table.py` turns that into `docs/benchmarks-engines.md`.
"""
