"""The card of a data set of negatives, README.md as the Hub shows it: how good, how made, how to load."""

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import yaml

from penumbra.artifacts.errors import without_secrets
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.markdown import markdown_table, plain
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.quality.page import fell, known, providers_of, summary, table

NEGATIVES, QUERIES = "negatives", "queries"
FORM = (
    ("`qid`, `vid`", "the query, the video"),
    ("`level`", "1 to 3: how much of the query is replaced"),
    ("`query`, `masked_query`, `negative`", "the sentence, its masks, and what is false of the moment"),
    ("`words`, `provider`, `model`", "what fills the masks, and who filled them"),
    ("`similarity`", "cosine of both sentences"),
)


def write_card(
    store: Store,
    negatives: Artifact,
    name: str,
    licence: str,
    files: Mapping[str, Mapping[str, str]],
    notes: Sequence[str],
) -> str:
    """The card's markdown; `files` are those of each split by configuration, `notes` what was left out."""
    made = store.manifest(negatives)
    title = f"{made.dataset}: hierarchical hard negatives for temporal grounding"
    sections = [
        (
            "",
            "Sentences that are false of their moment, three a query, each further from it than the one before, after "
            "[SHINE](https://arxiv.org/abs/2407.05118) (ECCV 2024). Made with Penumbra.",
        ),
        ("", "".join(f"- {plain(note)}\n" for note in notes)),
        ("Load", _loading(name)),
        (
            "Columns",
            markdown_table(("column", "what it is"), FORM, cell=str)
            + f"\n\n`{QUERIES}` has `qid`, `vid`, `query`, `duration` and `windows` (seconds) of every split.",
        ),
        ("How good they are", _quality(store, negatives)),
        ("How they were made", _making(store, negatives, made)),
        ("Licence", f"`{licence}`. The queries are those of {plain(made.dataset)}, and under its licence."),
    ]
    text = [(f"## {heading}\n\n" if heading else "") + content for heading, content in sections if content]
    return "\n\n".join([f"---\n{_head(title, licence, files)}---", f"# {plain(title)}", *text]) + "\n"


def _head(title: str, licence: str, files: Mapping[str, Mapping[str, str]]) -> str:
    """What the Hub and `datasets` read: which files are which splits."""
    configs = [
        {
            "config_name": name,
            "default": name == NEGATIVES,
            "data_files": [{"split": split, "path": path} for split, path in splits.items()],
        }
        for name, splits in files.items()
    ]
    about = {"pretty_name": title, "license": licence, "language": ["en"]}
    tags = {"tags": ["temporal-grounding", "video-moment-retrieval", "hard-negatives"]}
    head: str = yaml.safe_dump(about | tags | {"configs": configs}, sort_keys=False, allow_unicode=True)
    return head


def _loading(name: str) -> str:
    return (
        f'```python\nfrom datasets import load_dataset\n\nnegatives = load_dataset("{name}", split="train")\n'
        f'queries = load_dataset("{name}", "{QUERIES}")\n```'
    )


def _quality(store: Store, negatives: Artifact) -> str:
    """The figures of the newest report on these negatives; what makes one where there is none."""
    for manifest in reversed(store.find(negatives.dataset, "quality")):
        if any((parent.stage, parent.key) == (negatives.stage, negatives.key) for parent in manifest.parents):
            figures = known(store.table(store.reference(manifest)).to_pylist())
            every = [f"### {plain(provider)}\n\n{table(figures, provider)}" for provider in providers_of(figures)]
            notes = "".join(f"- {plain(note)}\n" for note in manifest.notes)
            return "\n\n".join(filter(None, [fell(figures), notes, summary(figures), *every]))
    return f"Not judged yet: `penumbra quality {negatives.dataset}/negatives`."


def _making(store: Store, negatives: Artifact, made: Manifest) -> str:
    """Each stage with its key and parameters, the files that were read, and the versions."""
    several = [made, *(store.manifest(it) for found in store.ancestors(negatives).values() for it in found)]
    rows = [(it.stage, f"`{it.key}`", f"{it.rows:,}", f"{it.ended:%Y-%m-%d}", _code(it.parameters)) for it in several]
    inputs = {name: digest for it in several for name, digest in it.inputs.items()}
    read = [(plain(_public(name)), f"`{digest}`") for name, digest in inputs.items()]
    versions = ", ".join(f"{name} {version}" for name, version in made.software.items())
    return "\n\n".join(
        [
            markdown_table(("stage", "key", "rows", "finished", "parameters"), rows, cell=str),
            markdown_table(("read", "SHA-256"), read, cell=str),
            f"With {versions}.",
        ]
    )


def _code(parameters: Mapping[str, Any]) -> str:
    return f"`{json.dumps(_public(dict(parameters)), ensure_ascii=False).replace('`', '')}`"


def _public(value: Any) -> Any:
    """A parameter without this machine's folders and without a password in an address."""
    if isinstance(value, dict):
        return {name: _public(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_public(inner) for inner in value]
    if isinstance(value, str):
        return PurePath(value).name if value.startswith(("/", "~")) else without_secrets(value)
    return value
