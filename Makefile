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

test: .venv/installed
	$(BIN)/python -m pytest -m 'not slow' --cov --cov-report=term

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow

lint: .venv/installed
	$(BIN)/pre-commit run --all-files

clean:
	rm -rf .venv .cache .coverage* .mypy_cache .pytest_cache .ruff_cache
