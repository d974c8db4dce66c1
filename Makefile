# Everything runs in .venv, which is built from requirements.lock, and `make docs` in .venv-docs, built from
# requirements-docs.lock. Both packages are installed, hierax (src) and hierax-lab (lab). Needed: make, Python >= 3.11, a
# package registry.
#   make test PYTHON=python3.12            choose the Python (only used when .venv is made)
#   make test PYTEST_ARGS='-k sets -x'     pass options to pytest (also test-fast, test-all)
#   make soak SOAK_ARGS='kills --kills 20' one part of the long tests, in small
#   make lock LOCK_ARGS=--upgrade          move every pin to its newest version

PYTHON ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
LOCK_ARGS ?=
DOCS_ARGS ?=

BIN := .venv/bin
DOCS_BIN := .venv-docs/bin

.DEFAULT_GOAL := help
.PHONY: help demo test run-tests test-fast test-all test-oldest test-newest coverage lint lint-workflows bench soak performance docs \
	lock check-lock release-check clean

help:
	@echo "make demo        solve a small problem and draw it (seconds, after the first install)"
	@echo "make test        lint, types and the test suite, with the examples of all docstrings"
	@echo "make run-tests   the tests of make test alone, without lint and types"
	@echo "make test-fast   a quick part of the test suite, for work in progress"
	@echo "make test-all    lint, types and every test, also the slow ones"
	@echo "make test-oldest  the test suite with the oldest versions that pyproject.toml allows; test-newest: the newest"
	@echo "make coverage    the test suite, and which lines and branches it reached"
	@echo "make lint        ruff, mypy and the contracts between packages only"
	@echo "make lint-workflows  zizmor on .github: known weaknesses of workflows; reads no network"
	@echo "make bench       the benchmarks"
	@echo "make soak        long tests under load: kills of running commands, a million steps, a thousand shapes, threads, busy processes"
	@echo "make performance  time a few fixed calls, add the result to the history, draw it into build/performance.png"
	@echo "make docs        the documentation site, in build/docs/html; reads no network once .venv-docs is made"
	@echo "make lock        resolve both pyproject.toml into requirements.lock and requirements-docs.lock"
	@echo "make check-lock  resolve both locks for every supported platform; installs nothing"
	@echo "make release-check  build both packages, install them into a clean environment, and use them there"
	@echo "make clean       remove .venv, .venv-*, caches and builds (not out/)"

demo: .venv/installed
	@$(BIN)/hierax demo

# Two processes; the one that is done first takes over tests of the other. Neighbouring tests share compiled programs, so
# each process begins with one half of the files in order.
TESTS := tests lab/tests
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

# Lint and types run beside the tests: alone they would leave a core without work.
test: .venv/installed
	@$(MAKE) --no-print-directory -j 2 lint run-tests

run-tests: .venv/installed
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS) $(TESTS)

# Files that take seconds and touch every part of the library.
FAST := $(patsubst %,tests/test_%.py,active_set adjoint_systems central_path clock columns contradiction docs_site envelope \
	estimated_steps infeasible lagrangian moved pace plugins private_names samples scanning sets solution workflows)

test-fast: .venv/installed
	@$(PYTEST) -m "not slow" $(PYTEST_ARGS) $(FAST)

test-all: lint
	@$(PYTEST) $(PYTEST_ARGS) $(TESTS)

# The test suite in an environment with the oldest, or the newest, versions that are allowed. Versions without a wheel for
# the Python in use are left out: the oldest NumPy has none for the newest Python. pytest and its kind are always new.
# A warning that an old version draws from a new neighbour says nothing about hierax: deprecations are no errors here.
PROJECTS := pyproject.toml lab/pyproject.toml
RESOLUTION_oldest := lowest-direct
RESOLUTION_newest := highest

test-oldest test-newest: test-%: .venv-%/installed
	@.venv-$*/bin/python -m pytest -n 2 --dist worksteal -m "not slow" -W default::DeprecationWarning $(PYTEST_ARGS) $(TESTS)

.venv-oldest/installed .venv-newest/installed: .venv-%/installed: $(PROJECTS)
	@$(find_uv); dir=.venv-$*; rm -rf "$$dir"; "$$uv" venv -q --no-project --python "$$py" "$$dir"; \
	"$$uv" pip compile -q --python "$$dir/bin/python" --resolution $(RESOLUTION_$*) --only-binary :all: --all-extras \
	  --no-annotate --no-emit-package hierax -o "$$dir/versions.txt" $(PROJECTS); \
	"$$uv" pip install -q --python "$$dir/bin/python" --only-binary :all: -r "$$dir/versions.txt" --group dev; \
	"$$uv" pip install -q --python "$$dir/bin/python" --no-deps --no-build-isolation $(PROJECTS:%pyproject.toml=-e ./%)
	@touch $@

# Processes that tests start are counted too. What is compiled counts as reached where it is traced.
coverage: .venv/installed
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m coverage run -m pytest -n 2 --dist worksteal -m "not slow" $(PYTEST_ARGS) $(TESTS)
	@$(BIN)/python -m coverage combine -q
	@$(BIN)/python -m coverage xml -q
	@$(BIN)/python -m coverage html -q
	@$(BIN)/python -m coverage report

lint: .venv/installed
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports --no-logo

bench: .venv/installed
	@$(BIN)/python -m hierax_lab.speed $(BENCH_ARGS)

soak: .venv/installed
	@$(BIN)/python -m hierax_lab.soak $(SOAK_ARGS)

lint-workflows: .venv/installed
	@$(BIN)/zizmor --offline --quiet .github

performance: .venv/installed
	@$(BIN)/python tools/performance_history.py --plot build/performance.png

# Shell text: sets $py to the first Python >= 3.11, or says what is missing.
find_python = \
	py=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    py=$$("$$candidate" -c 'import sys; print(sys.executable)'); break; \
	  fi; \
	done; \
	if [ -z "$$py" ]; then \
	  echo "hierax needs Python 3.11 or newer; $(if $(PYTHON),PYTHON=$(PYTHON) is not,found none as python3 or python3.14 to python3.11)." >&2; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3 ..." >&2; \
	  exit 1; \
	fi

# Shell text: makes a virtual environment with pip in the folder $dir, or says which system package is missing.
make_venv = \
	if ! "$$py" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	  version=$$("$$py" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "This Python $$version cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "Debian, Ubuntu: apt install python3-venv (or python$$version-venv). Elsewhere: install the full Python, or uv." >&2; \
	  exit 1; \
	fi; \
	"$$py" -m venv --clear "$$dir"

# Shell text: fills the folder $dir with a virtual environment that holds what the file $lock pins.
fill_venv = \
	bin=$$dir/bin; \
	if ! "$$bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  $(find_python); \
	  echo "making $$dir with $$("$$py" --version)"; \
	  if command -v uv >/dev/null 2>&1; then rm -rf "$$dir" && uv venv -q --no-project --python "$$py" "$$dir"; \
	  else $(make_venv); fi || exit 1; \
	fi; \
	echo "installing $$lock into $$dir (the first time this takes a minute or so)"; \
	$(find_installer); \
	if [ -n "$$uv" ]; then "$$uv" pip install -q --python "$$bin/python" --require-hashes -r "$$lock"; \
	else "$$bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r "$$lock"; fi

# Shell text: sets $uv to the uv on the path, or to the one in the environment $bin, which pip installs as requirements.lock
# has it; empty where that fails, and pip is there.
find_installer = \
	uv=$$(command -v uv || true); \
	if [ -z "$$uv" ] && [ ! -x "$$bin/uv" ]; then \
	  "$$bin/python" -m pip --version >/dev/null 2>&1 || "$$bin/python" -m ensurepip >/dev/null; \
	  sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > "$$bin/../uv.txt"; \
	  "$$bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r "$$bin/../uv.txt" || true; \
	fi; \
	if [ -z "$$uv" ] && [ -x "$$bin/uv" ]; then uv=$$bin/uv; fi

# Shell text: installs both packages into the virtual environment $dir.
install_project = \
	bin=$$dir/bin; $(find_installer); \
	if [ -n "$$uv" ]; then \
	  "$$uv" pip install -q --python "$$bin/python" --no-deps --no-build-isolation -e . -e lab; \
	else \
	  "$$bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e . -e lab; \
	fi

# Two stamps: a new lock installs packages again, a new pyproject.toml only the two packages themselves.
.venv/locked: requirements.lock
	@dir=.venv; lock=requirements.lock; $(fill_venv)
	@touch $@

.venv/installed: .venv/locked pyproject.toml lab/pyproject.toml
	@dir=.venv; $(install_project)
	@touch $@

.venv-docs/locked: requirements-docs.lock
	@dir=.venv-docs; lock=requirements-docs.lock; $(fill_venv)
	@touch $@

.venv-docs/installed: .venv-docs/locked pyproject.toml lab/pyproject.toml
	@dir=.venv-docs; $(install_project)
	@touch $@

# Warnings are errors. What is kept between builds: pages that did not change (doctrees), examples whose script did not
# change (docs/gallery), which figures were drawn (figures), compiled programs (jax). `make clean` removes them all.
docs: .venv-docs/installed
	@JAX_COMPILATION_CACHE_DIR=$(CURDIR)/build/docs/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 JAX_PLATFORMS=cpu \
	  $(DOCS_BIN)/python -m sphinx -q -W --keep-going -b html -d build/docs/doctrees $(DOCS_ARGS) docs build/docs/html
	@$(DOCS_BIN)/python tools/check_site.py build/docs/html

# Shell text: sets $uv to the uv on the path, or to one in a temporary folder, $tmp, that goes away at the end.
find_uv = \
	set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(find_python); uv=uv; \
	if ! command -v uv >/dev/null 2>&1; then \
	  dir=$$tmp/uv; $(make_venv); \
	  "$$dir/bin/python" -m pip install -qq --disable-pip-version-check uv; \
	  uv=$$dir/bin/uv; \
	fi

# The locks hold versions and hashes for every platform and Python version, and no addresses. What both pin has the same
# version in both. One lock serves both packages; they themselves are not in it.
# requirements-ipopt.lock is for `hierax bench race --ipopt` alone and is never installed here.
compile_lock = "$$uv" pip compile -q --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-emit-package hierax --custom-compile-command 'make lock' $(LOCK_ARGS)

lock:
	@$(find_uv); \
	$(compile_lock) --all-extras --group pyproject.toml:dev pyproject.toml lab/pyproject.toml -o requirements.lock; \
	$(compile_lock) --all-extras --group pyproject.toml:docs -c requirements.lock pyproject.toml lab/pyproject.toml \
	  -o requirements-docs.lock; \
	$(compile_lock) --group lab/pyproject.toml:ipopt -c requirements.lock -o lab/requirements-ipopt.lock; \
	if grep -nE '://|^-|file:|@ ' requirements.lock requirements-docs.lock lab/requirements-ipopt.lock; then \
	  echo "the lines above hold addresses or options" >&2; exit 1; \
	fi

# Not part of `make test`: it needs a package registry and says nothing about the code.
check-lock:
	@$(find_uv); "$$py" tools/check_lock.py "$$uv"

# Not part of `make test` either: installing needs a package registry. RELEASING.md tells when it is run.
release-check: .venv/installed
	@$(BIN)/python tools/check_release.py

clean:
	rm -rf .venv .venv-docs .venv-oldest .venv-newest build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf docs/gallery docs/reference docs/sg_execution_times.rst
	find src tests lab docs gallery tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
