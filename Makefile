# Start with `make demo` and `make test`. Both create .venv if it does not exist.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE ?= 1
export PREFECT_SERVER_ANALYTICS_ENABLED ?= false

.PHONY: setup pictures demo test test-all test-fast lint bench bench-million count campaign docs audit tagger tiny-clip scenes-grounder clean

setup: .venv/installed

# The locks pin every package with the hashes of its files. Of torch only the version is pinned, so that pip selects the
# build for this machine.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
.venv/installed: pyproject.toml requirements.lock requirements-dev.lock
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 13) else f"Penumbra needs Python 3.11 or 3.12, not {v.major}.{v.minor}: make PYTHON=python3.11")'
	@echo "Installing the pinned packages into .venv, 3.5 GB: two to four minutes"
	$(PYTHON) -m venv .venv
	$(PIP) --no-deps --require-hashes --requirement requirements.lock --requirement requirements-dev.lock
	$(PIP) torch==2.13.0
	$(PIP) --no-deps --editable .
	@echo "Installed: call .venv/bin/penumbra, or put .venv/bin on your PATH"
	touch $@

demo: setup
	$(BIN)/penumbra run full-pipeline scenes
	@echo
	$(BIN)/penumbra artifacts ls scenes
	$(BIN)/penumbra artifacts show scenes/negatives --rows 6
	@echo
	$(BIN)/penumbra artifacts show scenes/video_features --rows 3
	@echo
	@echo "Parquet tables: $$($(BIN)/penumbra artifacts path scenes/negatives)"
	@echo "                $$($(BIN)/penumbra artifacts path scenes/predictions)"
	@echo "For the Prefect UI, start $(BIN)/penumbra serve and run full-pipeline/scenes there. It reuses these artifacts."
	@echo
	@mkdir -p build/demo
	@echo "Prediction in a new video, drawn in build/demo/found.svg. The woman waves from 7.1 to 9.0 s and kicks the stool from"
	@echo "10.1 to 12.5 s. This small model finds the waving; its first window for the kick is usually wrong, and its second"
	@echo "one right. The last three sentences are true of no moment: so small a model rejects only some of these."
	$(BIN)/penumbra predict examples/unseen_scene.mp4 "the person is gently kicking the brown stool." "a person waving." \
	    "a person is pouring water into a cup." "a man opens the door." "someone washes the dishes." \
	    --run $$(basename $$($(BIN)/penumbra artifacts path scenes/metrics)) --output build/demo/found.svg --top 2

test: setup lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not long"

# All tests, including those that take minutes: presets, kills, whole flows, the wheel, the server, the examples.
test-all: setup lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# Only quick tests: without a Prefect server, other processes or long training.
test-fast: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not slow" --quiet

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@$(BIN)/python -m bench.engines
	@$(BIN)/python -m bench.training
	@$(BIN)/python -m bench.features

# The scale of a million queries, measured on some of its parts; takes half an hour (docs/scale.md).
bench-million: setup
	@$(BIN)/python -m bench.million

# The size of the project: lines, files, parameters, and what one query enters.
count: setup
	@$(BIN)/python -m bench.count

# Kill runs, damage stores, fuzz files and disturb services; about 40 minutes on two cores (docs/reliability.md).
campaign: setup
	@$(BIN)/python -m bench.campaigns.kills --kills 50 --pairs 20
	@$(BIN)/python -m bench.campaigns.corruption
	@$(BIN)/python -m bench.campaigns.inputs --cases 20
	@$(BIN)/python -m bench.campaigns.fuzz --files 10000 --videos 200
	@$(BIN)/python -m bench.campaigns.paying --pairs 20 --kills 20
	@$(BIN)/python -m bench.campaigns.parameters --cases 1000

# Build build/site/index.html; fail on a broken link.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Take docs/pictures with a headless Chromium, after `make demo`.
pictures: setup
	@$(BIN)/python -m bench.pictures

# TREEBANK is a folder with UD English-EWT's three .conllu files.
tagger: setup
	$(BIN)/python -m workshop.tagger.train $(TREEBANK)

# Train the shipped CLIP; one to two hours on one core.
tiny-clip: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m workshop.tiny_clip.train

# Train the grounding model that the demo starts from, on features of other scenes from the shipped CLIP.
OTHERS := $(CURDIR)/build/scenes-others
scenes-grounder: setup
	$(BIN)/python -m workshop.grounder $(OTHERS)
	$(BIN)/penumbra run extract-features scenes-others --param dataset.folder=$(OTHERS) --param texts.negatives=none \
	    --param clip.encoder=tiny-clip --param videos.clip_length=0.5 \
	    --param 'imports.sources=[{path: $(OTHERS)/features}]'
	$(BIN)/penumbra run train-grounding scenes-others --param dataset.folder=$(OTHERS) --param preset=scenes-grounder
	$(BIN)/python -m workshop.ship \
	    $$($(BIN)/penumbra artifacts path scenes-others/metrics) models/scenes_grounder

# Check the pinned packages for known vulnerabilities; needs a network.
AUDIT := build/audit.txt
audit: setup
	@mkdir -p build
	@$(BIN)/pip-audit --disable-pip --no-deps --progress-spinner off \
	    --requirement requirements.lock --requirement requirements-dev.lock > $(AUDIT) 2>&1; status=$$?; cat $(AUDIT); \
	    if grep -q ConnectionError $(AUDIT); then echo "No network: the packages were not checked."; else exit $$status; fi

clean:
	rm -rf .venv build *.egg-info
