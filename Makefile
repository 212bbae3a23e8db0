# Everything runs in the environment .venv, which the targets make when it is missing.
SHELL := /bin/bash
.DEFAULT_GOAL := help

ENV  := scripts/in-env
RUN  := $(ENV) python scripts/run_and_reap.py
CODE := connector jobs tests bench scripts
MKDOCS := NO_MKDOCS_2_WARNING=1 $(ENV) mkdocs
# Only `setup` makes the archive. Java says nothing of one that does not fit, and reads the jars.
CLASSES = $(shell test -e .venv/spark.jsa && echo "-XX:SharedArchiveFile=$(CURDIR)/.venv/spark.jsa -Xlog:disable")
# More workers than cores: tests mostly wait for servers. A file stays on one worker and shares what it has started.
PYTEST := pytest -n $(or $(WORKERS),4) --dist loadfile
TEST := -m "not thorough and not explore"
TEST_ALL := -m "thorough and not explore"
OLDEST := 4.0.5//lowest
NEWEST := 4.3.0
# Needs each Python on the PATH. No server reads the store of a newer one.
ALL := $(addprefix 4.3.0///,2.10.26 2.11.11 2.12.8 2.14.6) \
	$(OLDEST) $(foreach spark,4.0.5 4.1.4 4.2.1 4.3.0,$(addprefix $(spark)/,3.11 3.12 3.13)) 4.1.4/3.14 4.2.1/3.14 4.3.0/3.14
TESTING := test test-all test-matrix explore coverage
# A test's JVM lives too short to earn back what the second compiler costs, compiles more than its cache takes by default,
# and starts many processes.
$(TESTING): export JDK_JAVA_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m \
	-Djdk.lang.Process.launchMechanism=VFORK $(CLASSES)
# Tests start hundreds of Python processes, none of which should compile the sources anew.
$(TESTING) .run/compiled: export PYTHONDONTWRITEBYTECODE :=
# Test processes have many threads; an arena for each would keep what other threads have freed.
$(TESTING): export MALLOC_ARENA_MAX ?= 2
$(TESTING): export PROCESSOR_TIME := told

.PHONY: help setup setup-run setup-test setup-dev run demo-tango test test-all test-matrix test-originals explore coverage mutate check format bench serve wheel release pictures recipes-check docs docs-serve clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: ## all that the targets need, whatever is missing of it (PYTHON=... chooses the interpreter)
	@scripts/setup.sh all

setup-run setup-test setup-dev:
	@scripts/setup.sh $(@:setup-%=%)

run: setup-run ## publish 336,776 flights to a broker of its own, and show the delivery report
	@$(RUN) python jobs/demo.py $(ARGS)

demo-tango: setup ## record a Tango device, lose events of it, archive the others, and report what is missing
	@$(RUN) python jobs/tango_demo.py $(ARGS)

# By one process, before the workers, each of which would compile everything.
.run/compiled: $(shell find connector tests -name '*.py') | setup-test
	@mkdir -p $(@D); $(ENV) pytest -q --collect-only >$@ || true # which the tests will say better

test: setup-test .run/compiled ## does it work, and did a change break anything? (ARGS=... goes to pytest)
	@$(RUN) $(PYTEST) $(TEST) $(ARGS)

test-all: setup .run/compiled ## the other deterministic tests: every job, clusters, installations, browser, terminal, processes that are killed
	@$(RUN) $(PYTEST) $(TEST_ALL) $(ARGS)
	$(if $(ARGS),,@$(RUN) python -m tests.matrix $(OLDEST) $(NEWEST))

test-matrix: setup ## formats and jobs on other versions of Spark, Python, dependencies and nats-server, one after another over the same checkpoints (VERSIONS="4.0.5/3.12 4.3.0/3.14", or all)
	@$(RUN) python -m tests.matrix $(patsubst all,$(ALL),$(or $(VERSIONS),$(OLDEST) 4.1.4 4.2.1 $(NEWEST) 4.0.5))

explore: setup ## look for the unknown, hours long: random examples of property tests, fault campaigns, long runs, planted faults
	@TIER=explore $(RUN) $(PYTEST) -m hypothesis $(ARGS) || [ $$? = 5 ] # which says that ARGS select none
	@$(RUN) python -m tests.simulation --from $$(date +%s) --runs 9100
	@TIER=explore $(RUN) pytest -m explore --timeout 7200 $(ARGS)
	$(if $(ARGS),,@$(RUN) python -m tests.simulation --faults --runs 2000)
	$(if $(ARGS),,@$(MAKE) --no-print-directory mutate)

coverage: setup .run/compiled ## lines and branches by package: of `make test`, and of both tiers together (BEFORE=report.json: beside it)
	@rm -rf .run/coverage; mkdir -p .run/coverage
	@$(RUN) $(PYTEST) $(TEST) --cov --cov-config=$(CURDIR)/pyproject.toml --cov-report= $(ARGS) || true
	@$(ENV) coverage json -q -o .run/coverage-test.json
	@$(RUN) $(PYTEST) $(TEST_ALL) --cov --cov-append --cov-config=$(CURDIR)/pyproject.toml --cov-report= $(ARGS) || true
	@$(ENV) coverage json -q -o .run/coverage.json
	@$(ENV) python scripts/coverage_by_package.py $(or $(BEFORE),.run/coverage-test.json) .run/coverage.json

mutate: setup ## plant small faults in the product, one at a time, and see that the tests catch each
	@$(RUN) python -m tests.seeded_faults.run $(ARGS)

test-originals: setup ## beside the original C programs that are built below ORIGINALS=PREFIX; without it, says which ones
	@$(RUN) python -m tests.originals "$(ORIGINALS)" $(ARGS)

check: setup-dev ## style, types, architecture, generated pages, links of the documentation
	@$(ENV) ruff check $(CODE) conf
	@$(ENV) ruff format --check $(CODE) conf
	@$(ENV) mypy $(CODE)
	@$(ENV) pytest -q -p no:xdist tests/test_architecture.py tests/test_specifications.py tests/docs
	@$(ENV) mama docs options --check docs/reference/options.md
	@$(ENV) python scripts/command_reference.py --check
	@$(ENV) python -m scripts.rooms_picture --check
	@$(ENV) python -m scripts.drawn_pictures --check
	@$(MKDOCS) build --strict

format: setup-dev ## let ruff format and repair what it can
	@$(ENV) ruff check --fix $(CODE) conf
	@$(ENV) ruff format $(CODE) conf

bench: setup ## side-by-side benchmark, at most 28 minutes (FULL=1: everything; ARGS=--quick: a minute; PEERS=kafka: packed messages and a pipe beside Kafka, 16 minutes)
	@scripts/setup.sh gcc
ifdef PEERS
	@scripts/setup.sh $(PEERS)
	@$(RUN) python -m bench.packed --peers $(PEERS) $(ARGS)
	$(if $(filter-out --quick,$(ARGS)),,@$(RUN) python -m bench.pipe --peers $(PEERS) --seconds 10 $(ARGS))
else
	@$(RUN) python -m bench.run $(if $(FULL),--full,--minutes 12) $(ARGS)
	$(if $(filter-out --quick,$(ARGS)),,@$(RUN) python -m bench.exactly_once $(ARGS))
	$(if $(filter-out --quick,$(ARGS)),,@$(RUN) python -m bench.pipe --seconds 10 $(ARGS))
	$(if $(filter-out --quick,$(ARGS)),,@$(RUN) python -m bench.malamute $(ARGS))
	$(if $(filter-out --quick,$(ARGS)),,@$(RUN) python -m bench.tango $(ARGS))
endif

serve: setup-run ## a NATS server with JetStream and a demo stream, until Ctrl-C at port 4222 (ARGS="--port 0": a free one)
	@$(RUN) mama serve $(ARGS)

wheel: ## the wheel, in dist/, with jobs and configuration files
	@scripts/setup.sh python
	@$(ENV) python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

release: ## sdist and wheel of the last commit, in dist/, tried with each Python that is here (PYTHONS="python3.12 ...")
	@scripts/setup.sh java
	@$(ENV) python scripts/release.py

recipes-check: setup ## the recipes of conf/docker, compose and kubernetes with hadolint, kubeconform, helm and others (needs Go)
	@$(ENV) python scripts/recipes_check.py

pictures: setup-dev ## draw the pictures of the explanations, and from a real run those in docs/pictures
	@$(ENV) python -m scripts.rooms_picture --write
	@$(ENV) python -m scripts.drawn_pictures --write
	@$(RUN) python -m scripts.pictures

docs: setup-dev ## write the generated pages in docs/ and build the site in .run/site
	@$(ENV) mama docs options --write docs/reference/options.md
	@$(ENV) python scripts/command_reference.py --write
	@$(ENV) python scripts/spec_checklist.py --write
	@$(ENV) python -m scripts.rooms_picture --write
	@$(ENV) python -m scripts.drawn_pictures --write
	@$(MKDOCS) build --strict

docs-serve: setup-dev ## show the site at http://127.0.0.1:8000 and follow the pages while they are written
	@$(MKDOCS) serve

clean: ## remove the environment and everything that was built or run here
	@rm -rf .venv .run build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
