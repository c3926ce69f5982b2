# The image of every Prefect process in docker-compose.yml. Layers from the slowest to the most changing: the
# packages, torch, the code; after a change of code nothing is installed again.
FROM python:3.11.14-slim-bookworm

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

RUN useradd --uid 1000 --create-home penumbra \
    && install --directory --owner=penumbra --group=penumbra /artifacts /weights

WORKDIR /penumbra

# Every package by the hashes of its files; torch by its version alone: on x86 it brings CUDA.
COPY requirements.lock ./
RUN pip install --no-deps --require-hashes --requirement requirements.lock
RUN pip install torch==2.13.0

# An editable install of an empty package: the console command and the import path.
COPY pyproject.toml ./
RUN touch README.md && mkdir penumbra && touch penumbra/__init__.py && pip install --no-deps --editable .

COPY README.md prefect.yaml ./
# penumbra/ holds links to the folders below it in this list: a COPY of the folder keeps them as links.
COPY penumbra penumbra
COPY prompts prompts
COPY models models
COPY artifacts artifacts
COPY tasks tasks
COPY flows flows

USER penumbra
CMD ["penumbra", "--help"]
