# Two commands: `make fit` trains the default model, `make test` runs the tests. Both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: fit test test-slow lint clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[demo,dev,export,notebooks,sweep,dashboard]'
	touch $@

fit: .venv/installed
	$(BIN)/python -m project fit --config configs/classify.yaml

# Two processes with a thread each: most of a test's time is spent where a second thread has nothing to do.
test test-slow: PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test: .venv/installed
	$(PYTEST) -m 'not slow' --cov --cov-report=term

test-slow: .venv/installed
	$(PYTEST) -m slow

lint: .venv/installed
	$(BIN)/pre-commit run --all-files

clean:
	rm -rf .venv .cache .coverage* .mypy_cache .pytest_cache .ruff_cache
