# Two commands for a newcomer: `make demo` and `make test`. Both set up .venv first if it isn't there.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE ?= 1
export PREFECT_SERVER_ANALYTICS_ENABLED ?= false

.PHONY: setup pictures demo test test-all test-fast lint bench bench-million count campaign docs audit tagger tiny-clip scenes-grounder clean

setup: .venv/installed

# The locks pin every version and its files; torch by its version alone, so that the build that fits the machine is taken.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
.venv/installed: pyproject.toml requirements.lock requirements-dev.lock
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 13) else f"Penumbra needs Python 3.11 or 3.12, not {v.major}.{v.minor}: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(PIP) --no-deps --require-hashes --requirement requirements.lock --requirement requirements-dev.lock
	$(PIP) torch==2.13.0
	$(PIP) --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/penumbra run full-pipeline scenes
	@echo
	$(BIN)/penumbra artifacts ls scenes
	$(BIN)/penumbra artifacts show scenes/negatives --rows 6
	@echo
	$(BIN)/penumbra artifacts show scenes/video_features --rows 3
	@echo
	$(BIN)/penumbra artifacts show scenes/evaluation
	@echo
	@mkdir -p build/demo
	@echo "A video of no training set: the woman kicks the stool from 10.1 to 12.5 s and waves from 7.1 to 9.0 s."
	$(BIN)/penumbra predict examples/unseen_scene.mp4 "the person is gently kicking the brown stool." "a person waving." \
	    --run $$(basename $$($(BIN)/penumbra artifacts path scenes/metrics)) --output build/demo/found.svg --top 2
	@echo "Frames, scores and windows as a picture: build/demo/found.svg"
	@echo
	@echo "Everything as Parquet: $$($(BIN)/penumbra artifacts path scenes/negatives)"
	@echo "                       $$($(BIN)/penumbra artifacts path scenes/predictions)"
	@echo "In the Prefect UI: $(BIN)/penumbra serve, and run full-pipeline/scenes there; what is made is found"

test: setup lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not long"

# With what takes minutes: every preset made as planned, kills and runs of whole flows, the wheel, the server, the examples.
test-all: setup lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# The inner loop: what needs no Prefect server, no process of its own and no training of seconds.
test-fast: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not slow" --quiet

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup
	@$(BIN)/python -m bench.pipeline
	@$(BIN)/python -m bench.engines
	@$(BIN)/python -m bench.training
	@$(BIN)/python -m bench.features

# Half an hour: a million queries, of which those in the middle are really made (docs/scale.md).
bench-million: setup
	@$(BIN)/python -m bench.million

# The size of the project: lines, files, parameters, and what one query enters.
count: setup
	@$(BIN)/python -m bench.count

# Kills, damage, fuzzed files and faulty services by the thousand, about 40 minutes on two cores: docs/reliability.md.
campaign: setup
	@$(BIN)/python -m bench.campaigns.kills --kills 50 --pairs 20
	@$(BIN)/python -m bench.campaigns.corruption
	@$(BIN)/python -m bench.campaigns.fuzz --files 10000 --videos 200
	@$(BIN)/python -m bench.campaigns.paying --pairs 20 --kills 20

# Fails on a link that leads nowhere; open build/site/index.html.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pictures of docs/pictures, of what `make demo` made; a Chromium takes them.
pictures: setup
	@$(BIN)/python -m bench.pictures

# TREEBANK is a folder with UD English-EWT's three .conllu files.
tagger: setup
	$(BIN)/python -m workshop.tagger.train $(TREEBANK)

# An hour or two of one core; the weights that come with the project were made by this.
tiny-clip: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m workshop.tiny_clip.train

# The grounding model that the demo starts from, with the CLIP that is there: other scenes, their features, a training.
OTHERS := $(CURDIR)/build/scenes-others
scenes-grounder: setup
	$(BIN)/python -m workshop.grounder $(OTHERS)
	$(BIN)/penumbra run extract-features scenes-others --param dataset.folder=$(OTHERS) --param texts.negatives=none \
	    --param clip.encoder=tiny-clip --param videos.clip_length=0.5 \
	    --param 'imports.sources=[{path: $(OTHERS)/features}]'
	$(BIN)/penumbra run train-grounding scenes-others --param dataset.folder=$(OTHERS) --param preset=scenes-grounder
	$(BIN)/python -m workshop.ship \
	    $$($(BIN)/penumbra artifacts path scenes-others/metrics) models/scenes_grounder

# Known faults of the pinned packages; without a network nothing is asked.
AUDIT := build/audit.txt
audit: setup
	@mkdir -p build
	@$(BIN)/pip-audit --disable-pip --no-deps --progress-spinner off \
	    --requirement requirements.lock --requirement requirements-dev.lock > $(AUDIT) 2>&1; status=$$?; cat $(AUDIT); \
	    if grep -q ConnectionError $(AUDIT); then echo "No network: nothing was asked."; else exit $$status; fi

clean:
	rm -rf .venv build *.egg-info
