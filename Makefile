# Two commands: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test studies test-lowest parity lint clean

demo: $(VENV)/.installed
	@echo "Pretraining and fine-tuning five variants on two cores; this takes ten to fifteen minutes."
	$(BIN)/bertlab sweep --study=experiments/ablations/objectives.py:scale=demo --workdir=runs/demo --jobs=2
	$(BIN)/bertlab report runs/demo

# Compilation is most of what the tests cost: XLA optimises little here, and as for a user in `make parity`.
test: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -n 2

# Every run of every study, two steps each; `make test` trains one run of each.
studies: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 BERTLAB_WHOLE_STUDIES=1 $(BIN)/python -m pytest -n 2 tests/studies/test_smoke.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "bertlab needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "This Python has no venv: install it (on Debian and Ubuntu: apt install python3-venv) and run make again."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-parity build bertlab.egg-info

# Against other people's code on the same weights, in an environment of its own: PyTorch, transformers, gensim, TensorFlow; and
# plans by the TPU's compiler, whose presence must not make JAX look for a TPU.
parity: $(VENV)-parity/.installed
	JAX_PLATFORMS=cpu $(VENV)-parity/bin/python -m pytest -n 2 tests/parity tests/interop

$(VENV)-parity/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)-parity
	$(VENV)-parity/bin/python -m pip install --quiet --disable-pip-version-check -e '.[parity]'
	touch $@

# The oldest versions that pyproject.toml allows, in an environment of their own.
test-lowest: $(VENV)/.installed-test
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-lowest
	$(BIN)/uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct -e '.[test]'
	$(VENV)-lowest/bin/python -m pytest -n 2 tests/data tests/objectives tests/train/test_resume.py tests/test_cli.py
