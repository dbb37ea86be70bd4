# make up    runs the quickstart (honours ROTA_* settings); APP=examples/pipelines.py runs another example
# make test  runs every check and the tests; ARGS="tests/core -k cron" narrows the tests
# make test-long runs the exhaustive and race tests that take a minute or more
# make lint  runs the checks only
# make screenshots  takes the screenshots of the dashboard for the docs
# make bench compares Rota with its peers and prints a table; ARGS="--quick --only w1 --peers huey" narrows it
# make bench-check fails if Rota is slower than the kept figures; bench-keep replaces them
# make constraints pins the newest versions that pyproject.toml allows, without dbt, which needs older ones (needs uv)
# make coverage prints which lines of rota the tests reach
# make clients writes the generated files of the Python and TypeScript clients and the Postman collection (needs npm)
# make docs  builds the documentation site in .site
# make diagrams writes the state diagrams of ARCHITECTURE.md and the pictures of docs/images/*.svg
# make clean removes all generated files

SHELL := /bin/sh
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c '$(RECENT)' 2>/dev/null && echo $$p && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=
APP ?= examples/quickstart.py

.PHONY: up test test-long clients constraints coverage diagrams docs lint chromium screenshots bench bench-check bench-keep clean
.DEFAULT_GOAL := test

up: $(VENV)/.installed
	$(BIN)/rota up $(APP)

test: lint chromium
	$(BIN)/python -m pytest -n 6 -m "not long" $(ARGS)

test-long: $(VENV)/.installed-long chromium
	$(BIN)/python -m pytest -n 6 -m "long and not engines" $(ARGS)
	$(BIN)/python -m pytest -n 1 -m engines $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Installs Debian's Chromium for the browser tests if none is found and the user is root; otherwise they are skipped.
chromium:
	@for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do \
		command -v $$name >/dev/null 2>&1 && exit 0; done; \
		[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1 \
		|| { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no Chromium could be installed: the dashboard is not tested in a browser" >&2

screenshots: $(VENV)/.installed-dev chromium
	$(BIN)/python -m tests.browser.screenshots docs/images

docs: $(VENV)/.installed-dev
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.installed-dev
	$(BIN)/python -m bench $(ARGS)

bench-check: $(VENV)/.installed-dev
	$(BIN)/python -m bench --check

bench-keep: $(VENV)/.installed-dev
	$(BIN)/python -m bench --keep

constraints:
	@{ echo '# The versions that the tests run with. `make constraints` regenerates this file from pyproject.toml.'; \
		uv pip compile --quiet pyproject.toml --extra dev --extra spark --extra ray --universal --python-version 3.11.5 --strip-extras \
		--no-header --no-annotate --upgrade; } > constraints.txt

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 6 -m "not long" --cov=rota --cov-report=term:skip-covered $(ARGS)

clients: $(VENV)/.installed-dev
	$(BIN)/python -m tests.clients.write

diagrams: $(VENV)/.installed-dev
	$(BIN)/python -m tests.diagrams
	$(BIN)/python -m docs_site.pictures

clean:
	rm -rf $(VENV) .bench .site build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests examples docs_site -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: a second run installs nothing until pyproject.toml or constraints.txt changes.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(venv)
	$(PIP) install --constraint constraints.txt --editable '.[duckdb]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt
	$(venv)
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.installed $@

# Large packages that only long tests need; those tests are skipped where they cannot be installed.
$(VENV)/.installed-long: $(VENV)/.installed-dev
	-$(PIP) install --constraint constraints.txt --editable '.[ray]'
	@touch $@

# Creates the virtual environment unless a complete one exists.
define venv
	@$(PYTHON) -c '$(RECENT)' || { \
		echo "Rota needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
endef
