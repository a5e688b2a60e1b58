# `make demo` and `make test` are all that a fresh machine needs: Python 3.11 or newer, and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NATIVE := src/reluformer/kernels/native
CXX ?= c++

.PHONY: setup demo test lint format bench docs reference sanitize schema fuzz dist clean

# Runs $(2) and prints every 20 seconds that $(1) still goes on. The sleep keeps no pipe open when it is left behind.
with_signs_of_life = echo '$(1) (may take minutes)'; \
	( s=0; while sleep 20 >/dev/null 2>&1; do s=$$((s + 20)); echo "  still $(1), $$s s"; done ) & beat=$$!; \
	$(2); code=$$?; kill $$beat 2>/dev/null; exit $$code

setup: $(READY)

# torch comes first and pinned: a range would pull another build.
$(READY): pyproject.toml constraints.txt setup.py release/metadata.py $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h)
	@test -n "$(PYTHON)" || { echo "no python3 found; install Python 3.11 or newer, or call make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)
	@$(call with_signs_of_life,installing torch,$(BIN)/python -m pip install --quiet --constraint constraints.txt torch setuptools)
	@$(call with_signs_of_life,installing the rest,$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]')
	@touch $@

demo: setup
	$(BIN)/reluformer demo

# One thread in each of as many processes as there are cores, at most four.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/telemetry.py

# The site needs no network; its search works when a server delivers it.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean
	@echo "Open site/index.html, or run: $(BIN)/python -m http.server --directory site"

# The reference of recipes: docs/recipe.md and the JSON schema beside the recipes.
reference: setup
	$(BIN)/reluformer recipe --markdown > docs/recipe.md
	$(BIN)/reluformer recipe --schema > configs/recipe.schema.json

# The C++ sources under the address and undefined-behaviour sanitizers, against plain loops in double precision.
# Sixteen lanes are emulated, so that any processor tests them; `native` runs the instructions that this one has.
SANITIZED := reads decoding sparse native-sparse
SANITIZE := $(CXX) -std=c++17 -g -O1 -ffp-contract=fast -Wall -Wextra -Wno-psabi -fsanitize=address,undefined \
	-fno-sanitize-recover=all -I$(NATIVE)
NATIVE_FILES := $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h tests/kernels/native/*.h)

sanitize: $(SANITIZED:%=build/sanitize-%)
	for driver in $^; do echo $$driver && $$driver || exit 1; done

build/sanitize-native-%: tests/kernels/native/%.cpp $(NATIVE_FILES)
	@mkdir -p build
	$(SANITIZE) $< $(NATIVE)/*.cpp -o $@ -lpthread

build/sanitize-%: tests/kernels/native/%.cpp $(NATIVE_FILES)
	@mkdir -p build
	$(SANITIZE) -DRELUFORMER_EMULATE $< $(NATIVE)/*.cpp -o $@ -lpthread

# Many more requests drawn from the server's OpenAPI document than the tests ask for.
schema: setup
	SCHEMA_EXAMPLES=300 $(BIN)/python -m pytest tests/integrations/server/test_schemas.py

# Mutated documents, corpora, recipes, models and runs, killed trainings, and bad clients of a server.
MINUTES ?= 10
SEED ?= 0
fuzz: setup
	$(BIN)/python tests/fuzz/campaign.py --minutes $(MINUTES) --seed $(SEED)

dist: setup
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	@ls dist

clean:
	rm -rf $(VENV) dist build site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis $(NATIVE)/_library*
