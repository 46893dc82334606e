PYTHON ?= python3
VENV ?= .venv
# Python writes the bytecode of what is imported; of all that is installed, it would take 15 seconds.
pip = $(VENV)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt
metadata = setup.cfg pyproject.toml constraints.txt

# Images often have it set; every process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train check test fuzz docs release oldest newest
.DELETE_ON_ERROR:

train: $(VENV)/experiments
	$(VENV)/bin/python -m experiments.train fit --config experiments/configs/digits/sbm.yaml

check: $(VENV)/compiled
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python -m pytest -n 2 -m 'not slow'

# Each process takes a half of the files, whose fixtures it makes once, until one is done.
test: $(VENV)/ext $(VENV)/compiled
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal

MINUTES ?= 10
fuzz: $(VENV)/compiled
	$(VENV)/bin/python -m tests.fuzz --minutes $(MINUTES)

docs: $(VENV)/docs $(VENV)/compiled
	$(VENV)/bin/python -m sphinx --quiet --fail-on-warning --builder html docs docs/_build
	@echo docs/_build/index.html

# The wheel and the source distribution of a release, in dist/, and README's examples with the wheel.
release: $(VENV)/extras
	$(VENV)/bin/python -m tests.release

# Other packages than constraints.txt has, without those that are built from source: for the oldest,
# each lower bound of setup.cfg is the version.
oldest: versions = ==
newest: versions = >=
oldest newest:
	$(PYTHON) -m venv --clear $(VENV)-$@
	$(VENV)-$@/bin/python -m pip install --quiet --upgrade setuptools wheel
	sed -nE 's/^ +([a-z-]+)(\[.*\])?>=([0-9.]+).*/\1$(versions)\3/p' setup.cfg > $(VENV)-$@/bounds.txt
	$(VENV)-$@/bin/python -m pip install --quiet --constraint $(VENV)-$@/bounds.txt \
		--editable '.[experiments,text,analysis,dev]'
	$(VENV)-$@/bin/python -m experiments.compile --float64
	$(VENV)-$@/bin/python -m pytest -n 2 --dist worksteal

$(VENV)/environment: $(metadata)
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(pip) --upgrade setuptools wheel
	touch $@

$(VENV)/experiments: $(VENV)/environment
	$(pip) --editable '.[experiments]'
	touch $@

$(VENV)/extras: $(VENV)/environment
	$(pip) --editable '.[experiments,text,analysis,dev]'
	touch $(VENV)/experiments $@

# A folder, or the address of a page, with wheels of torch-scatter and torch-sparse for this torch.
WHEELS ?=

# Both import torch while they are built, hence no build isolation; ninja compiles on all cores.
# The quick tests skip what needs them.
$(VENV)/ext: $(VENV)/extras
	@echo 'torch-scatter and torch-sparse: $(or $(WHEELS:%=wheels of % or ,),)built from source, once, up to 9 minutes on two cores'
	PATH=$(abspath $(VENV)/bin):$$PATH FORCE_ONLY_CPU=1 \
		CXXFLAGS='-g0 -DNDEBUG' $(pip) --no-build-isolation \
		$(WHEELS:%=--find-links %) --editable '.[ext]'
	touch $@

# Loops are compiled before the tests, whose processes would each compile the same ones: in two minutes,
# and again where one has changed.
$(VENV)/compiled: $(VENV)/extras $(shell find graphattn experiments -name '*.py')
	$(VENV)/bin/python -m experiments.compile --float64
	touch $@

$(VENV)/docs: $(VENV)/extras
	$(pip) --editable '.[docs]'
	touch $@
