# make demo   runs the review program on the shipped pair of models
# make test   runs the tests; make slow those that need a larger model
# make lint   ruff, mypy and pyright
# make notebooks   runs the tutorials; make tutorials also keeps their outputs; make docs builds docs/
# All of them make the environment that they need, in .venv. The tests run on all cores, one thread
# of torch each.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test slow lint notebooks tutorials docs clean

demo: $(STAMP)
	$(BIN)/smcprog demo

test: $(VENV)/.installed-genlm
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

slow: $(VENV)/.installed-slow
	$(BIN)/python -m pytest -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

notebooks: $(VENV)/.installed-notebook
	$(BIN)/python tools/notebooks.py

tutorials: $(VENV)/.installed-notebook
	$(BIN)/python tools/notebooks.py --write

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "smcprog needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# genlm-control and Triton are large, and only the tests need them (Triton's interpreter on a CPU).
$(VENV)/.installed-genlm: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,genlm,triton]"
	touch $@

$(VENV)/.installed-slow: $(VENV)/.installed-genlm
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,genlm,triton,slow]"
	touch $@

$(VENV)/.installed-notebook: $(VENV)/.installed-genlm
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,genlm,triton,notebook]"
	touch $@

$(VENV)/.installed-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs]"
	touch $@

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
