# make demo | check | test | lint | types | bench | clean
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help demo install check lint types test quick oracles fuzz bench versus docs clean
help:            ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(BIN)/glassbox: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: $(BIN)/glassbox
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

install: $(BIN)/glassbox  ## a .venv with glassbox in it

demo: install    ## fetch the default model, trace one prompt, print where the trace is
	$(BIN)/glassbox pull smollm2-135m
	$(BIN)/glassbox trace "Why is the sky blue?" --temperature 0.8 --seed 7 --max-tokens 48

lint: $(VENV)/.test  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test ## mypy --strict
	$(BIN)/mypy

quick: $(VENV)/.test ## the tests that are not slow
	$(BIN)/python -m pytest -m "not slow"

check: lint types quick ## what to run before a commit

test: $(VENV)/.test  ## the whole suite
	$(BIN)/python -m pytest

oracles: $(VENV)/.test $(VENV)/.bench ## the tests that ask torch, transformers and llama.cpp, which `make test` skips without them
	$(BIN)/python -m pytest -m oracle --no-skips

fuzz: $(VENV)/.test  ## damaged model files, for SECONDS (60); guided where atheris is installed
	$(BIN)/python tools/fuzz.py $(or $(SECONDS),60)

bench: install   ## speed of this machine
	$(BIN)/glassbox bench

$(VENV)/.bench: $(BIN)/glassbox
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@

versus: $(VENV)/.bench ## other engines beside it, in turns
	$(BIN)/python benchmarks/versus.py

docs: $(VENV)/.test $(VENV)/.bench ## run the commands in the documents and write down what they print
	$(BIN)/python tools/docs.py

clean:           ## remove the environment and what tools left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
