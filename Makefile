# Everything a developer does, each target with its own set-up. `make help` lists them.
#
# python3 (3.10 or later) makes a .venv here; `make BASE_PYTHON=python3.12 test` takes another one.
# Stamp files say what is installed: after a change of setup.py it is installed again.

BASE_PYTHON ?= python3
PYTHON := $(CURDIR)/.venv/bin/python
PIP := -m pip install --quiet --disable-pip-version-check
OTHER_SPARKS := 4.0 4.1 4.3
# The oldest Delta with each of them, beside that of `make test`. There is none for Spark 4.3.
DELTA_OF_SPARK_4.0 := 4.0.1
DELTA_OF_SPARK_4.1 := 4.2.0
PATCH_OF_SPARK_4.1 := 4.1.1# Delta 4.2 needs a class that 4.1.2 has no more
SPARK_PYTHONS := .venv-spark-4.0/bin/python .venv-spark-4.1/bin/python .venv/bin/python .venv-spark-4.3/bin/python
MINOR_VERSION = $(shell sed -n 's/^__version__ = "\([0-9]*\.[0-9]*\).*/\1/p' zeh_spark/__init__.py)
RELEASE := $(CURDIR)/.venv-release/bin/python
# One file for all Pythons from the given one on: pip follows its markers.
COMPILE := .venv-release/bin/uv pip compile --quiet --universal --upgrade --no-annotate --custom-compile-command 'make constraints'
# Old versions of libraries have no wheels for new Pythons.
OLDEST_PYTHON ?= $(firstword $(foreach each,python3.10 python3.11,$(shell $(each) -c 'print("$(each)")' 2>/dev/null)) $(BASE_PYTHON))
# Four processes keep two cores busy: tests wait for sockets and for processes that they start.
# Two of them have a Spark session, and run all tests that share one (tests/lanes.py).
TEST := -m pytest -n 4 --dist loadgroup

# Sessions of the demo live for ten seconds: the JVM compiles little, collects simply, and takes
# Spark's classes from where `make test` has kept them.
DEMO_JAVA := -Dlog4j2.configurationFile=file:$(CURDIR)/conf/log4j2.properties -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:NewSize=256m \
	$(addprefix -XX:SharedArchiveFile=,$(wildcard $(CURDIR)/.venv/spark-classes.jsa))

export PYSPARK_PYTHON := $(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(PYTHON)
export SPARK_LOCAL_IP := 127.0.0.1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all lint simulate test-faults upgrades bench bench-cluster docs docs-publish pictures notebooks matrix frozen constraints release dist sbom smoke python java test-oldest $(OTHER_SPARKS:%=test-spark-%)
.DELETE_ON_ERROR:

help:
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' Makefile | expand -t 16 | \
	awk 'NR == 1 {print "To begin with:"} NR == 5 {print "\nAll others:"} 1'

demo: .venv/.installed | java  ## a year of real flights through a feed into a table, with a crash half way
	PYSPARK_SUBMIT_ARGS="--driver-java-options '$(DEMO_JAVA)' pyspark-shell" \
	$(PYTHON) -m examples.demo $(ARGS)

test: .venv/.jars .venv-reference/.installed  ## all tests but the slow ones and the campaigns
	$(PYTHON) $(TEST) -m "not slow and not campaign" --durations=20 $(ARGS)

lint: .venv/.installed  ## style, types, import layers and generated pages
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest --quiet -p no:randomly tests/unit/test_layers.py tests/unit/test_requirement_ids.py \
	tests/docs/test_tables.py
	$(PYTHON) -m tests.measures

docs: .venv-docs/.installed  ## build the documentation into site/
	.venv-docs/bin/python docs/generate.py
	.venv-docs/bin/mkdocs build --strict

test-slow: .venv/.jars .venv-reference/.installed  ## what takes more than 5 s: a cluster, notebooks, killed drivers
	$(PYTHON) -m pytest -n 3 --dist loadgroup -m "slow and not campaign" --durations=20 $(ARGS)

simulate: .venv/.installed  ## random runs of clients, publisher and network in one thread; SEEDS=0:10000 for more, SEEDS=17 shows one
	$(PYTHON) -m tests.simulation --seeds $(or $(SEEDS),0:1000) $(ARGS)

test-faults: .venv/.jars  ## kill the processes of a whole pipeline at random: ARGS="--kills 1000 --seed 7 --store postgresql"
	$(PYTHON) -m tests.faults $(ARGS)

test-all: .venv/.jars .venv-reference/.installed .venv-azurite/.installed  ## all tests with campaigns and coverage, other Sparks, oldest libraries
	HYPOTHESIS_PROFILE=campaign $(PYTHON) $(TEST) --cov --cov-report=term $(ARGS)
	ZEH_TEST_STORE=postgresql $(PYTHON) $(TEST) $(wildcard tests/*/test_publish_*.py tests/*/test_producer*.py) \
	tests/acceptance/test_from_delta.py tests/acceptance/test_dedup.py tests/integration/test_feed_identity.py $(ARGS)
	$(MAKE) $(OTHER_SPARKS:%=test-spark-%) test-oldest upgrades

test-oldest: COMMANDS := $(wildcard tests/acceptance/test_cli*.py)
test-oldest: .venv-oldest/.installed .venv-reference/.installed | java  ## unit and integration tests with the oldest versions that setup.py allows; and commands with click 8.2
	export PYSPARK_PYTHON=$(CURDIR)/.venv-oldest/bin/python; \
	export PYSPARK_DRIVER_PYTHON=$$PYSPARK_PYTHON; \
	$$PYSPARK_PYTHON -m tests.class_archive && \
	$$PYSPARK_PYTHON $(TEST) -W default -m "not slow and not campaign" tests/unit tests/integration $(COMMANDS) $(ARGS) && \
	PYTHONPATH=$(CURDIR)/.venv-oldest/click-8.2 $$PYSPARK_PYTHON -m pytest -W default -m "not slow" tests/unit/cli $(COMMANDS)

upgrades: .venv/.jars $(OTHER_SPARKS:%=.venv-spark-%/.installed)  ## checkpoints and tables of each Spark, continued by each later one
	@set -ex; for old in $(SPARK_PYTHONS); do if [ -x $$old ]; then \
	export ZEH_FROZEN=$$(mktemp -d)/frozen.tar.gz; \
	PYSPARK_PYTHON=$(CURDIR)/$$old PYSPARK_DRIVER_PYTHON=$(CURDIR)/$$old $$old -m tests.frozen; \
	for new in $(SPARK_PYTHONS); do if [ -x $$new ]; then \
	PYSPARK_PYTHON=$(CURDIR)/$$new PYSPARK_DRIVER_PYTHON=$(CURDIR)/$$new \
	$$new -m pytest -n 0 -W default -rs tests/acceptance/test_frozen.py; fi; done; fi; done

bench: .venv/.installed .venv-reference/.installed | java  ## measure; PEERS=kafka adds Spark's Kafka source
	$(PYTHON) -m benchmarks $(if $(PEERS),--peers $(PEERS))

bench-cluster: .venv/.installed | java  ## measure a standalone cluster of one worker and of two, part by part
	$(PYTHON) -m benchmarks cluster $(ARGS)

frozen: .venv/.jars  ## write what this version stores into tests/data, for later versions to open; never again for a release
	$(PYTHON) -m tests.frozen

docs-publish: .venv-docs/.installed  ## commit this version's documentation to the branch gh-pages; ARGS=--push pushes it
	export PATH="$(CURDIR)/.venv-docs/bin:$$PATH"; \
	mike deploy --update-aliases $(ARGS) "$(MINOR_VERSION)" latest && mike set-default $(ARGS) latest

pictures: .venv/.jars .venv-pictures/.installed  ## make the pictures of programs in docs/pictures again: four minutes
	$(PYTHON) -m tests.pictures $(ARGS)

notebooks: .venv/.installed | java  ## run the notebooks, and keep their outputs in them
	$(PYTHON) notebooks/run.py $(ARGS)

constraints: .venv-release/.installed  ## renew the versions of libraries that .venv, .venv-docs and .venv-reference get
	$(COMPILE) --python-version 3.10 --extra publisher --extra dev --extra docs -o tests/constraints.txt setup.py
	printf 'zeroeventhub==0.2.3\nuvicorn\n' | $(COMPILE) --python-version 3.11 -o tests/constraints-reference.txt -

release: | java  ## build, check and try what would be published: dist, sbom, then smoke; ARGS=4.1 tries that Spark alone
	$(MAKE) dist ARGS=
	$(MAKE) sbom ARGS=
	$(MAKE) smoke

dist: .venv-release/.installed  ## build wheel and sdist into dist/, and check them; ARGS="--publish v0.1.0" asks more
	$(RELEASE) -m check_jsonschema --builtin-schema vendor.compose-spec conf/docker/compose.yaml
	$(RELEASE) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE) -m tests.release.artifacts $(ARGS)

sbom: .venv-release/.installed  ## write what the wheel in dist/ brings along: documents in dist/, and the docs' table of licences
	$(RELEASE) -m tests.release.sbom $(ARGS)

smoke: .venv-release/.installed | java  ## install the files of dist/ with each Spark, and try them; ARGS="4.1 plain" tries these
	$(RELEASE) -m tests.release.smoke --python $(BASE_PYTHON) $(ARGS)

$(OTHER_SPARKS:%=test-spark-%): test-spark-%: .venv-spark-%/.installed .venv-reference/.installed | java
	@if [ ! -x .venv-spark-$*/bin/python ]; then cat .venv-spark-$*/.installed; else set -x; \
	export PYSPARK_PYTHON=$(CURDIR)/.venv-spark-$*/bin/python; \
	export PYSPARK_DRIVER_PYTHON=$$PYSPARK_PYTHON; \
	$$PYSPARK_PYTHON -m tests.class_archive && \
	$$PYSPARK_PYTHON $(TEST) -W default -m "not campaign" tests/integration tests/acceptance $(ARGS); fi

matrix: .venv/.installed $(OTHER_SPARKS:%=.venv-spark-%/.installed) | java  ## what works on which Spark, by runs, into docs/operate/where-it-runs.md
	@set -ex; for python in .venv-spark-*/bin/python .venv/bin/python; do \
	export PYSPARK_PYTHON=$(CURDIR)/$$python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$$python; \
	$$python -m tests.class_archive; $$python -m tests.matrix; done

# What the targets stand on

python:
	@$(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	{ echo "Python 3.10 or later is needed; '$(BASE_PYTHON)' is $$($(BASE_PYTHON) --version 2>&1 || true)." \
	"Name another one: make BASE_PYTHON=/path/to/python3" >&2; exit 1; }
	@$(BASE_PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo "Python's venv module is missing. Debian, Ubuntu: apt-get install python3-venv" >&2; exit 1; }

java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'); \
	[ "$${version:-0}" -ge 17 ] || \
	{ echo "Java 17 or later is missing, which Spark 4 needs (found: $${version:-none}; JAVA_HOME=$$JAVA_HOME)." \
	"Debian, Ubuntu: apt-get install openjdk-17-jre-headless" >&2; exit 1; }

.venv/.installed: setup.py pyproject.toml tests/constraints.txt | python
	$(BASE_PYTHON) -m venv .venv
	$(PYTHON) $(PIP) --constraint tests/constraints.txt --editable '.[publisher,dev]'
	touch $@

.venv/.jars: .venv/.installed | java
	$(PYTHON) -m tests.class_archive
	touch $@

# It draws recordings of terminals as SVG.
.venv-pictures/.installed: | python
	$(BASE_PYTHON) -m venv .venv-pictures
	.venv-pictures/bin/python $(PIP) termtosvg-ng==1.4.1
	touch $@

.venv-docs/.installed: setup.py tests/constraints.txt | python
	$(BASE_PYTHON) -m venv .venv-docs
	.venv-docs/bin/python $(PIP) --constraint tests/constraints.txt --editable '.[publisher,docs]'
	touch $@

.venv-release/.installed: | python
	$(BASE_PYTHON) -m venv .venv-release
	$(RELEASE) $(PIP) 'build>=1.2' 'twine>=6.1' 'cyclonedx-bom>=7' 'check-jsonschema>=0.31' 'uv>=0.9'
	touch $@

# The reference implementation, as a peer in tests. Its pins do not fit ours, and it needs Python 3.11.
.venv-reference/.installed: tests/constraints-reference.txt | python
	@mkdir -p .venv-reference
	if $(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	$(BASE_PYTHON) -m venv .venv-reference && \
	.venv-reference/bin/python $(PIP) --requirement tests/constraints-reference.txt; fi
	touch $@

.venv-spark-%/.installed: setup.py | python
	@mkdir -p .venv-spark-$*
	if [ $* = 4.3 ] && ! $(BASE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	echo "Spark 4.3 is left out: it needs Python 3.11, and $(BASE_PYTHON) is older" > $@; else \
	$(BASE_PYTHON) -m venv .venv-spark-$* && \
	.venv-spark-$*/bin/python $(PIP) --upgrade pip && \
	.venv-spark-$*/bin/python $(PIP) --editable '.[publisher,test]' 'pyspark[sql]==$(or $(PATCH_OF_SPARK_$*),$*.*)' && \
	$(if $(DELTA_OF_SPARK_$*),.venv-spark-$*/bin/python $(PIP) --no-deps delta-spark==$(DELTA_OF_SPARK_$*) &&) \
	touch $@; fi

.venv-oldest/.installed: setup.py tests/oldest.py | python
	$(OLDEST_PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m tests.oldest > .venv-oldest/constraints.txt
	.venv-oldest/bin/python $(PIP) --upgrade pip
	.venv-oldest/bin/python $(PIP) --constraint .venv-oldest/constraints.txt --editable '.[publisher,test]' \
	'pyspark[sql]==4.0.0'
	.venv-oldest/bin/python $(PIP) --no-deps delta-spark==4.0.1
	.venv-oldest/bin/python $(PIP) --no-deps --target .venv-oldest/click-8.2 click==8.2.1
	touch $@

# Azure Blob Storage for campaigns. Later versions need a newer Node.
.venv-azurite/.installed:
	npm install --silent --no-audit --no-fund --prefix .venv-azurite azurite@3.34.0
	touch $@
