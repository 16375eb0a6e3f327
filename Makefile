# Two commands: `make demo` and `make test`. Both make .venv and install what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo cloud docs docs-serve test test-slow test-nightly browser soak damage fuzz planted studies test-lowest test-locked lock audit parity parity-nightly cuda lint types package clean

demo: $(VENV)/.installed
	@echo "Pretraining and probing three variants with four seeds on two cores; this takes about eight minutes."
	$(BIN)/bertlab sweep --study=experiments/ablations/objectives.py:scale=demo --workdir=runs/demo --jobs=2
	$(BIN)/bertlab report runs/demo
	@echo "To run bertlab yourself in this terminal: source $(BIN)/activate"

# Tests mostly wait for compilation, so XLA optimises little here; `make parity` compiles as your own runs do. Work stealing gives
# each worker one half of the files in order, so that both seldom set up the same module.
test: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# The rest, without what a sibling covers in most changes: see test-nightly.
test-slow: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not nightly"

# One more study, family or notebook of each kind that `make test-slow` covers with another one.
test-nightly: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m nightly

# Makes every call of a short run that changes a file fail once, in random order, for so many minutes, and prints counts by operation.
SEED ?= 0
MINUTES ?= 30
soak: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(BIN)/python -m tests.faults.soak --seed=$(SEED) --minutes=$(MINUTES)

# Damages a valid file of every kind that bertlab reads so many times, and generates so many files; `make test` does it 20 times.
ROUNDS ?= 1000
damage: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 BERTLAB_DAMAGES=$(ROUNDS) $(BIN)/python -m pytest -n 2 --dist worksteal tests/faults/test_readers.py tests/faults/test_generated_files.py

# Fuzzes the readers whose names match READER for so many minutes each, in a separate environment (Linux).
READER ?=
fuzz: MINUTES = 1
fuzz: $(VENV)-fuzz/.installed
	JAX_PLATFORMS=cpu JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(VENV)-fuzz/bin/python -m tests.faults.fuzz --reader='$(READER)' --minutes=$(MINUTES)

# Builds the site into build/site, in a separate environment; a warning, such as a link that leads nowhere, is an error.
docs: $(VENV)-docs/.installed
	$(VENV)-docs/bin/python docs/assemble.py build/site-source
	$(VENV)-docs/bin/python -m sphinx -b html -c docs --fail-on-warning --keep-going --quiet build/site-source build/site
	@echo "The site is build/site/index.html."

# Builds the site and serves it at http://localhost:8000 until Ctrl-C.
docs-serve: docs
	$(VENV)-docs/bin/python -m http.server --directory build/site --bind localhost 8000

$(VENV)-docs/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

$(VENV)-fuzz/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)-fuzz
	$(VENV)-fuzz/bin/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	touch $@

# Tests the interactive page of a report in the browsers that Playwright finds, in a separate environment, and says which it
# lacks: `.venv-browser/bin/playwright install chromium firefox` brings them, or CHROMIUM=PATH names a Chromium that you have.
CHROMIUM ?=
browser: $(VENV)-browser/.installed
	CHROMIUM='$(CHROMIUM)' $(VENV)-browser/bin/python -m pytest -rs tests/browser

$(VENV)-browser/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)-browser
	$(VENV)-browser/bin/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'
	touch $@

# Has SkyPilot validate the launcher's tasks, and keeps snapshots and texts in stand-ins of S3 and of Google's store (Linux, macOS), in
# a separate environment: SkyPilot needs other versions of packages.
cloud: $(VENV)-cloud/.installed
	JAX_PLATFORMS=cpu $(VENV)-cloud/bin/python -m pytest tests/cloud

$(VENV)-cloud/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)-cloud
	$(VENV)-cloud/bin/python -m pip install --quiet --disable-pip-version-check -e '.[cloud]'
	touch $@

# Trains every run of every study for two steps; the tests train one run of each kind.
studies: $(VENV)/.installed-test
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 BERTLAB_WHOLE_STUDIES=1 $(BIN)/python -m pytest -n 2 --dist worksteal tests/studies/test_smoke.py

# Plants known bugs one at a time in a copy of this checkout, and fails if the tests miss one.
planted: $(VENV)/.installed-test
	$(BIN)/python tests/planted/run.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Checks strictly a program that uses every public name. mypy, because it knows flax's and jaxtyping's classes and needs no Node.
types: $(VENV)/.installed-types
	$(BIN)/mypy tests/types/public_names.py

# Builds the sdist, and from it the wheel.
package: $(VENV)/.installed-test
	rm -rf dist
	$(BIN)/uv build

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "bertlab needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 14))' \
	  || echo "bertlab is tested on Python 3.11 to 3.13; if this newer one fails, name another with: make PYTHON=python3.12 ..."
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

$(VENV)/.installed-types: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[types]'
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-locked $(VENV)-docs $(VENV)-browser $(VENV)-fuzz $(VENV)-cloud $(VENV)-parity $(VENV)-transformers4 $(VENV)-cuda build dist bertlab.egg-info .mypy_cache

# Compares bertlab with PyTorch, transformers, gensim and TensorFlow on the same weights, in a separate environment. That
# environment has the TPU compiler for `bertlab plan`; JAX_PLATFORMS keeps JAX from looking for a TPU.
PARITY := JAX_PLATFORMS=cpu $(VENV)-parity/bin/python -m pytest -n 2 --dist worksteal
parity: $(VENV)-parity/.installed $(VENV)-transformers4
	$(PARITY) -m "not nightly" tests/parity tests/train/test_dashboards.py

# Those of them that take long. ELMo has no rival there, only a NumPy reference: its test is compiled here as your own runs are.
parity-nightly: $(VENV)-parity/.installed $(VENV)-transformers4
	$(PARITY) -m nightly tests/parity
	$(PARITY) tests/interop/test_elmo.py

# It sees the packages of .venv, so only the others are installed.
PACKAGES_OF = import sysconfig; print(sysconfig.get_path("purelib"))
$(VENV)-parity/.installed: $(VENV)/.installed-test
	$(BIN)/python -m venv $(VENV)-parity
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(PACKAGES_OF)')')" \
	  > "$$($(VENV)-parity/bin/python -c '$(PACKAGES_OF)')/test_packages.pth"
	$(VENV)-parity/bin/python -m pip install --quiet --disable-pip-version-check -e '.[parity]'
	touch $@

# Lowers training steps for NVIDIA GPUs with cuDNN's attention, in a separate environment of 6 GB; it needs no GPU.
cuda: $(VENV)-cuda/.installed
	JAX_PLATFORMS=cpu $(VENV)-cuda/bin/python -m pytest -n 2 tests/train/test_gpu_programs.py

$(VENV)-cuda/.installed: $(VENV)/.made pyproject.toml
	$(BIN)/python -m venv $(VENV)-cuda
	$(VENV)-cuda/bin/python -m pip install --quiet --disable-pip-version-check -e '.[cuda,test]'
	touch $@

# The versions that BabyLM's evaluation pipeline of 2025 pins; tests/parity/test_transformers4.py opens exports with them.
$(VENV)-transformers4: | $(VENV)-parity/.installed
	$(VENV)-parity/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ \
	  transformers==4.51.3 tokenizers==0.21.1 huggingface-hub==0.31.0

# Tests the oldest versions that pyproject.toml allows, in a separate environment.
test-lowest: $(VENV)/.installed-test
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-lowest
	$(BIN)/uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct -e '.[test]'
	$(VENV)-lowest/bin/python -m pytest -n 2 --dist worksteal -m "not slow" tests/data tests/objectives tests/train/test_resume.py tests/test_cli.py

# Tests the versions of requirements-test.lock, in a separate environment.
test-locked: $(VENV)/.installed-test
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-locked
	$(BIN)/uv pip sync --quiet --python $(VENV)-locked/bin/python requirements-test.lock
	$(BIN)/uv pip install --quiet --python $(VENV)-locked/bin/python --no-deps -e .
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 $(VENV)-locked/bin/python -m pytest -n 2 --dist worksteal -m "not slow"

# Renews requirements-test.lock: the newest version of each package that works with the others on every system and Python.
lock: $(VENV)/.installed-test
	$(BIN)/uv pip compile pyproject.toml --quiet --extra test --upgrade --universal --python-version 3.11 --fork-strategy fewest \
	  --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' -o requirements-test.lock

# Looks up known vulnerabilities of the lock's versions; needs PyPI.
audit: $(VENV)/.installed-test
	$(BIN)/uvx pip-audit --strict --requirement requirements-test.lock --no-deps --disable-pip
