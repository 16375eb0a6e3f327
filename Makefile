# Two commands: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow test-nightly parity lint docs package planted cuda clean

demo: $(VENV)/.installed
	@echo "Pretraining and probing three variants with four seeds; on two cores this takes five to six minutes."
	$(BIN)/bertlab sweep --study=experiments/ablations/objectives.py:scale=demo --workdir=runs/demo --jobs=2
	$(BIN)/bertlab report runs/demo
	@echo "To run bertlab yourself in this terminal: source $(BIN)/activate"

# Tests mostly wait for compilation, so XLA optimises little here; `make parity` compiles as your own
# runs do.
PYTEST := JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
test: $(VENV)/.installed-test
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.installed-test
	$(PYTEST) -m "slow and not nightly"

# One more study, family or notebook of each kind, contrib, the project of `bertlab init`, and more
# models of parity.
test-nightly: $(VENV)-parity/.installed
	$(PYTEST) -m nightly
	$(BIN)/python -m pytest experiments/own_project
	JAX_PLATFORMS=cpu $(VENV)-parity/bin/python -m pytest -n 2 -m nightly tests/parity

# Compares bertlab with PyTorch, transformers, and gensim on the same weights, in a separate
# environment that sees the packages of .venv.
parity: $(VENV)-parity/.installed
	JAX_PLATFORMS=cpu $(VENV)-parity/bin/python -m pytest -n 2 --dist worksteal -m "not nightly" tests/parity

# Plants twenty bugs, one at a time, in a copy of this checkout; fails if the tests miss one.
planted: $(VENV)/.installed-test
	$(BIN)/python tests/planted_bugs.py

# Compiles the benchmark's training steps for an NVIDIA H100; it needs no GPU, but 6 GB of packages.
cuda: $(VENV)-cuda/.installed
	JAX_PLATFORMS=cpu $(VENV)-cuda/bin/python -m pytest tests/cuda

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The documents and published results as a site, build/site/docs/index.html.
docs: $(VENV)-docs/.installed
	$(VENV)-docs/bin/sphinx-build -q -W --keep-going -c docs . build/site

# Builds the sdist, and from it the wheel.
package: $(VENV)/.installed-test
	rm -rf dist
	$(BIN)/python -m build

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "bertlab needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

PIP := -m pip install --quiet --disable-pip-version-check
$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python $(PIP) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.made pyproject.toml
	$(BIN)/python $(PIP) -e '.[test]'
	touch $@ $(VENV)/.installed

PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))
$(VENV)-parity/.installed: $(VENV)/.installed-test
	$(BIN)/python -m venv $(VENV)-parity
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PACKAGES)')')" \
	  > "$$($(VENV)-parity/bin/python -c '$(PACKAGES)')/test_packages.pth"
	$(VENV)-parity/bin/python $(PIP) -e '.[parity]'
	touch $@

$(VENV)-cuda/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)-cuda
	$(VENV)-cuda/bin/python $(PIP) -e '.[cuda,test]'
	touch $@

$(VENV)-docs/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python $(PIP) furo myst-parser sphinx sphinx-copybutton
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-docs $(VENV)-parity $(VENV)-cuda $(VENV)-newest build dist bertlab.egg-info
