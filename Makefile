# lab: open the course · demo: the main job without a browser
# test: every law, 13 to 20 minutes on two cores · test-quick: house rules, theory and pictures, two or three minutes
# test-all: every chapter in both languages, every law in all languages, themes and sizes, 1,000 launches with faults
# notebooks: build them from their source · book: also run them, and write the pages that need no kernel and no network (out/book)
# slides, handouts: of every chapter, run as for the book (out/slides, out/handouts); make slides CHAPTERS=02: of one
# hub: JupyterHub and its proxy, for a room on one machine (python -m labkit classroom hub)
# bench: the benchmarks · mutate: do the tests notice a broken rule (63 rules, 16 to 21 minutes) · env: the environment in .venv, and DeepSpeed's ops · clean: remove what the others wrote, .venv stays
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NEEDED := g++ python3-dev python3-venv
STAMP := $(VENV)/.stamp
HUB := $(VENV)/hub/.stamp
WORKERS ?= 4
ONCE := and not again
PYTEST := $(BIN)/python -m pytest
FEW := LABKIT_TEST_BOARDS=few
SIDE_BY_SIDE := -n $(WORKERS) --dist loadscope
# Empty: hundreds of processes import labkit here, and compile it once for all of them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: lab test test-notebooks test-parallel test-alone test-quick test-all demo notebooks book slides handouts bench mutate env hub clean
.NOTPARALLEL:

lab: env
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/index.ipynb

# Three steps, one after another: all of them are run and shown, and one that fails fails the whole.
test: env
	@$(MAKE) --no-print-directory --keep-going test-notebooks test-parallel test-alone

# Every cell of every chapter once; what is made here the tests below read.
test-notebooks:
	$(BIN)/python notebooks/checked.py

test-parallel:
	$(if $(ONCE),$(FEW)) $(PYTEST) $(SIDE_BY_SIDE) -m "not alone $(ONCE)"

# Tests of time: nothing else runs meanwhile. Only the files that have some are read.
test-alone:
	$(PYTEST) -m "alone $(ONCE)" $$(grep -rl --include='test_*.py' 'mark.alone' tests)

# What make test does, and what is marked again; every chapter in Chinese too; then the soak.
test-all: env
	@$(MAKE) --no-print-directory hub || echo 'without a hub its tests skip' >&2
	$(BIN)/python notebooks/checked.py --languages
	@$(MAKE) --no-print-directory --keep-going ONCE= test-parallel test-alone
	$(BIN)/python benchmarks/soak.py

test-quick: env
	$(PYTEST) $(SIDE_BY_SIDE) -m quick

demo: env
	$(BIN)/python -m labkit demo

notebooks: env
	$(BIN)/python notebooks/build.py

book: notebooks
	$(BIN)/python notebooks/book.py

slides: notebooks
	$(BIN)/python notebooks/slides.py $(CHAPTERS)

handouts: notebooks
	$(BIN)/python notebooks/handouts.py $(CHAPTERS)

bench: env
	$(BIN)/python benchmarks/report.py

mutate: env
	$(BIN)/python benchmarks/mutate.py

env: $(STAMP)
	@$(BIN)/python -m labkit ops

# The stamp is written last. Without it an earlier attempt did not finish, and .venv is made anew; with it only the pins
# are followed, by the Python that is in there.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo 'no $(PYTHON) here. Install what the course needs: apt-get install $(NEEDED)' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "labkit needs Python 3.11 or newer: make env PYTHON=python3.11")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo '$(PYTHON) lacks venv. Install what the course needs: apt-get install $(NEEDED)' >&2; exit 1; }
	$(if $(wildcard $(STAMP)),,$(PYTHON) -m venv --clear $(VENV))
	@rm -f $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[test]'
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps $$($(BIN)/python -c \
		'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["tool"]["labkit"]["no-deps"])')
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --upgrade --target $(VENV)/grading $$($(BIN)/python -c \
		'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["tool"]["labkit"]["grading"])')
	@touch $(STAMP)

hub: $(HUB)

# What `python -m labkit classroom hub` needs. jlpm is JupyterLab's own client of the npm registry: Node.js is enough, no npm.
$(HUB): $(STAMP)
	@command -v node >/dev/null || { echo 'a hub needs Node.js: apt-get install nodejs' >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --editable '.[hub]'
	@mkdir -p $(VENV)/hub
	@echo '{}' > $(VENV)/hub/package.json
	cd $(VENV)/hub && YARN_NODE_LINKER=node-modules YARN_GLOBAL_FOLDER=.yarn YARN_ENABLE_TELEMETRY=0 ../bin/jlpm add $$(../bin/python -c \
		'import tomllib; print(tomllib.load(open("$(CURDIR)/pyproject.toml", "rb"))["tool"]["labkit"]["hub-proxy"])') >/dev/null
	@touch $(HUB)

clean:
	rm -rf out build .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
