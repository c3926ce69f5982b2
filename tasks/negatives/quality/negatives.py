"""The input of the quality report: negatives, the data set to evaluate them against, and the stage `measures`.

A row of `measures` has the measures of one negative's text. The quality report sums these rows; users filter them to
find leaks or copies.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.errors import MissingError
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import NAME, Artifact, Manifest, Part
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import MANIFEST, Store
from penumbra.tasks.data.annotations import STAGE as ANNOTATIONS
from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset, DatasetError
from penumbra.tasks.data.rows import MASK, TRAINING
from penumbra.tasks.negatives.checks import LeakageFilter, may_be_true, normal_form, queries_with_tokens
from penumbra.tasks.negatives.files import Negative, NegativesError, read_negatives
from penumbra.tasks.negatives.fills import FILLED
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.stage import Stage, build
from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from penumbra.tasks.text.relations import Relation, Tokens, relations
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, Tagging, Tags, load_pipeline, tag_part
from penumbra.tasks.text.tags import STAGE as TAGS
from penumbra.tasks.text.wordnet import wordnet_inputs

MEASURES = "measures"
UNNAMED = "unnamed"  # the name of the data set if a file belongs to no known one
WORD = re.compile(r"[a-z']+")
UNIT = re.compile(rf"(?:{MASK}|[a-z'])+")
MASK_OR_WORD = re.compile(rf"{MASK}|[a-z']+")


@dataclass(frozen=True)
class AnnotatedDataset:
    """The queries of a data set and their tokens: artifacts of the store, or the queries of a file of negatives."""

    store: Store
    name: str
    annotations: Artifact | None = None
    tags: Artifact | None = None
    tables: list[tuple[pa.Table, pa.Table]] = field(default_factory=list)

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return tuple(filter(None, (self.annotations, self.tags)))

    def annotated(self) -> Iterable[tuple[pa.Table, pa.Table]]:
        if self.annotations is None or self.tags is None:
            return self.tables
        return zip(self.store.parts(self.annotations), self.store.parts(self.tags), strict=True)


@dataclass(frozen=True)
class ArtifactNegatives:
    """The rows of `negatives`, or the first fills of a provider, joined with their queries and masks."""

    store: Store
    artifact: Artifact

    @cached_property
    def ancestors(self) -> dict[str, list[Artifact]]:
        """The artifacts that the rows were made from, by stage; raises `NegativesError` without annotations or tags."""
        ancestors = self.store.ancestors(self.artifact)
        lacking = [stage for stage in ("annotations", "tags") if stage not in ancestors]
        if self.artifact.stage not in ("negatives", "fills"):
            raise NegativesError(f"{self.artifact.path} holds no negatives: give DATASET/negatives or DATASET/fills")
        if lacking:
            raise NegativesError(f"{self.artifact.path} does not name its {' and '.join(lacking)}: build it again")
        return ancestors

    def dataset(self) -> AnnotatedDataset:
        annotations = self.ancestors["annotations"][0]
        return AnnotatedDataset(self.store, annotations.dataset, annotations, self.ancestors["tags"][0])

    def rows(self, queries: Collection[str] | None = None) -> list[Negative]:
        """Return the rows of all queries, or of these."""
        wanted = None if queries is None else pa.array(queries, pa.string())
        parts = range(len(self.store.manifest(self.artifact).parts))
        return [row for index in parts for row in self.part(index, wanted)]

    def part(self, index: int, queries: pa.Array | None = None) -> list[Negative]:
        """Return the rows of a part, of all queries or of these; of `fills`, the first fill of each query and level."""

        def read(artifact: Artifact, columns: list[str]) -> pa.Table:
            rows = self.store.part(artifact, index, columns)
            return rows if queries is None else rows.filter(pc.is_in(rows["qid"], queries))

        is_chosen = self.artifact.stage == "negatives"
        columns = ["qid", "level", "negative", "provider", "similarity" if is_chosen else "status"]
        negatives = read(self.artifact, columns)
        if not len(negatives):
            return []
        about = {row["qid"]: row for row in read(self.ancestors["annotations"][0], ["qid", "vid", "query"]).to_pylist()}
        masks: dict[Any, dict[str, Any]] = {}
        if "masks" in self.ancestors:
            tags = read(self.ancestors["tags"][0], ["qid", "tokens"])
            lemmas = {row["qid"]: [token["lemma"] for token in row["tokens"]] for row in tags.to_pylist()}
            for row in read(self.ancestors["masks"][0], ["qid", "level", "masked_query", "slots"]).to_pylist():
                slots = tuple(Slot(**slot, lemma=lemmas[row["qid"]][slot["token"]]) for slot in row["slots"])
                masks[row["qid"], row["level"]] = {"masked": row["masked_query"], "slots": slots}
        rows = negatives if is_chosen else first_fills(negatives).drop_columns("status")
        return [
            Negative(**row | about[row["qid"]] | masks.get((row["qid"], row["level"]), {})) for row in rows.to_pylist()
        ]


def first_fills(fills: pa.Table) -> pa.Table:
    """Return the first fill of each query and level that was filled."""
    filled = fills.filter(pc.equal(fills["status"], FILLED))
    places = filled.select(["qid", "level"]).to_pandas().drop_duplicates()
    return filled.take(pa.array(places.index, pa.int64()))


@dataclass(frozen=True)
class FileNegatives:
    """The rows of a file, or of the Parquet files of a folder."""

    store: Store
    path: Path
    artifact = None

    @cached_property
    def every(self) -> list[Negative]:
        """All rows; raises `NegativesError` that names the first row that is no negative."""
        rows = read_negatives(self.path)
        for row in rows:
            fault = row.fault or ("" if row.query else "its query is missing")
            fault = fault or ("" if row.level else "level is no whole number from 1 on")
            if fault := fault or ("" if row.negative else "negative is empty"):
                raise NegativesError(
                    f"{self.path}, {row.value.partition(': ')[0]}: {fault}: correct the row or delete it"
                )
        return rows

    def rows(self, queries: Collection[str] | None = None) -> list[Negative]:
        """Return the rows of all queries, or of these."""
        return self.every if queries is None else [row for row in self.every if row.qid in queries]

    def dataset(self) -> AnnotatedDataset:
        """Return the data set that the file belongs to; if there is none, the file's queries as a training split."""
        first = self.every[0]
        for manifest in reversed(self.store.find(stage=ANNOTATIONS)):
            for part in self.store.parts(self.store.reference(manifest), ["qid", "query"]):
                if {"qid": first.qid, "query": first.query} in part.to_pylist():
                    return dataset_named(self.store, manifest.dataset)
        name = self.path.resolve().parent.name
        if NAME.match(name) and (data_folder() / name).is_dir():
            return dataset_named(self.store, name)
        others = {"split": TRAINING, "duration": 0.0, "windows": [], "novel": [], "saliency": None}
        queries = {row.qid: {"qid": row.qid, "vid": row.vid, "query": row.query, **others} for row in self.every}
        annotations = table_of(ANNOTATIONS, list(queries.values()))
        tags = tag_part(annotations, load_pipeline(SHIPPED_PIPELINE)).rows
        return AnnotatedDataset(self.store, UNNAMED, tables=[(annotations, tags)])


Source = ArtifactNegatives | FileNegatives


def find_negatives(store: Store, reference: str) -> Source:
    """Return the negatives of a file or folder, or of an artifact of the store; raise `PenumbraError` otherwise."""
    path = Path(reference).expanduser()
    if (path / MANIFEST).is_file():
        manifest = Manifest.model_validate_json((path / MANIFEST).read_bytes())
        root = Store(str(path.resolve().parents[2]))
        return ArtifactNegatives(root, root.reference(manifest))
    if path.exists():
        return FileNegatives(store, path)
    if "/" not in reference or path.suffix:
        raise NegativesError(f"no file {reference}: give a file of negatives, or DATASET/negatives of the store")
    return ArtifactNegatives(store, store.resolve(reference))


def dataset_named(store: Store, name: str) -> AnnotatedDataset:
    """Return a data set by name: its files, tagged now if they are not, or without files its newest artifacts."""
    if not NAME.match(name):
        raise NegativesError(f"{name!r} is no name of a data set: give one as in --dataset charades-cg")
    try:
        dataset = Dataset(name=name)
        dataset.split_files()
    except (DatasetError, MissingError):
        if not store.find(name, TAGS):
            raise
        tags = store.newest(name, TAGS)
        annotations = next(p for p in store.manifest(tags).parents if p.stage == ANNOTATIONS)
    else:
        annotations = build(Annotations(dataset))
        tags = build(Tags(annotations, Tagging()))
    return AnnotatedDataset(store, name, annotations, tags)


# -- the data set as a reference, and the stage `measures` ------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """Return the tokens `[a-z']+` of a text, lower-cased."""
    return WORD.findall(text.lower())


def fills_of(masked: str, text: str) -> tuple[str, ...] | None:
    """Return the words in the masks' places, or None if the text is not the masked query with one word per mask."""
    template, words = UNIT.findall(masked.lower()), words_of(text)
    if len(template) != len(words):
        return None
    fills: list[str] = []
    for unit, word in zip(template, words, strict=True):
        # a unit may be "<mask>'s"; with many masks that touch, matching would take for ever
        match = re.fullmatch(unit.replace(MASK, "([a-z']+)"), word) if unit.count(MASK) < 2 else None
        if not match:
            return None
        fills += match.groups()
    return tuple(fills)


def masked_tokens(masked: str, tokens: Sequence[str]) -> list[int] | None:
    """Return which of a query's tokens a masked query hides, or None if the two do not match.

    A token may be several words of the template, or none ("t-shirt" is two, "." none).
    """
    template, indices, place = MASK_OR_WORD.findall(masked.lower()), [], 0
    for index, token in enumerate(tokens):
        words = words_of(token)
        if place < len(template) and template[place] == MASK and any(c.isalnum() for c in token):
            indices.append(index)
            place += 1
        elif template[place : place + len(words)] == words:
            place += len(words)
        else:
            return None
    return indices if place == len(template) else None


class Reference:
    """The content of a data set that negatives are evaluated against.

    `parsed` are the training queries whose tokens are kept; `with_human` keeps queries that no provider has drawn from.
    """

    def __init__(self, data: AnnotatedDataset, parsed: Collection[str] = (), with_human: bool = False) -> None:
        self.dataset, self.dictionary = data.name, Dictionary(dictionary_part(data.annotated()).rows)
        self.queries = defaultdict[str, set[str]](set)  # by video
        self.trained = set[str]()  # normal forms of the training queries
        self.tests = defaultdict[str, set[str]](set)  # normal forms by test split
        self.human, self.relations = list[str](), set[Relation]()  # queries of the other splits, their relations
        self.parsed: dict[str, Tokens] = {}
        self._forms_of_video: dict[str, tuple[set[str], set[str]]] = {}

        def read() -> Iterator[tuple[dict[str, Any], Tokens]]:
            for row, tokens in queries_with_tokens(data.annotated()):
                self.queries[row["vid"]].add(row["query"])
                if row["split"] == TRAINING:
                    self.trained.add(normal_form(row["query"]))
                    if row["query"] in parsed:
                        self.parsed[row["query"]] = tokens
                else:
                    self.tests[row["split"]].add(normal_form(row["query"]))
                    if with_human:
                        self.human.append(row["query"])
                        self.relations.update(relations(tokens))
                yield row, tokens

        self.leakage = LeakageFilter(read(), every=True)  # `read` also sets the attributes above

    def forms_of_video(self, vid: str) -> tuple[set[str], set[str]]:
        """Return the normal forms of a video's queries, and their lemmatised forms."""
        if vid not in self._forms_of_video:
            texts = self.queries.get(vid, set())
            self._forms_of_video[vid] = set(map(normal_form, texts)), set(map(self.leakage.lemmatised, texts))
        return self._forms_of_video[vid]

    def slots(self, row: Negative) -> tuple[Slot, ...] | None:
        """Return a row's slots: its own, or those of the masked query; None if it does not match the query."""
        if row.slots is not None or row.masked is None:
            return row.slots
        tokens = self.parsed.get(row.query, ())
        places = masked_tokens(row.masked, [token["text"] for token in tokens])
        chosen = [(place, tokens[place]) for place in places or ()]
        return tuple(Slot(i, t["primitive"] or "", t["tag"], t["text"], t["lemma"]) for i, t in chosen) or None


def measure(row: Negative, reference: Reference) -> dict[str, Any]:
    fills = fills_of(row.masked, row.negative) if row.masked is not None else None
    form, own = normal_form(row.negative), normal_form(row.query)
    forms, lemmatised_forms = reference.forms_of_video(row.vid)
    leakage, slots, counts = reference.leakage, reference.slots(row), dict[str, int | bool]()
    lemmatised, (has_pair, has_word) = leakage.lemmatised(row.negative), leakage.held_out(row.negative)
    if fills and slots and len(fills) == len(slots):
        pairs, offer = list(zip(fills, slots, strict=True)), reference.dictionary.offer
        counts["slots"] = len(pairs)
        counts["same_slot_class"] = sum(fill in offer(slot.primitive, slot.tag).index_of for fill, slot in pairs)
        counts["may_be_true"] = may_be_true(slots, fills)
        counts["equal_to_original"] = sum(fill == slot.word.lower() for fill, slot in pairs)
    return {
        "qid": row.qid,
        "level": row.level,
        "provider": row.provider,
        "vid": row.vid,
        "known_query": row.query in reference.queries.get(row.vid, ()),
        "template_kept": None if row.masked is None else fills is not None,
        "words": fills or (),
        **counts,
        "length": len(words_of(row.negative)),
        "closed_vocabulary": leakage.has_only_known_words(row.negative),
        "copy": form == own,
        "false_negative": form != own and form in forms,
        "false_negative_lemmatised": lemmatised in lemmatised_forms or lemmatised == leakage.lemmatised(row.query),
        "test_splits": [split for split, tested in reference.tests.items() if form in tested],
        "trained": form in reference.trained,
        "held_out_composition": has_pair,
        "held_out_word": has_word,
        "similarity": row.similarity,
    }


@dataclass(frozen=True)
class Measures(Stage):
    """The measures of each negative of an artifact against a data set: the negatives' own, or another."""

    name = MEASURES
    version = 2
    unit = "negative"
    may_be_empty = True

    negatives: ArtifactNegatives
    data: AnnotatedDataset

    @property
    def dataset(self) -> str:
        return self.data.name

    @property
    def parents(self) -> tuple[Artifact, ...]:
        return self.negatives.artifact, *self.data.artifacts

    def inputs(self) -> dict[str, str]:
        return wordnet_inputs()

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.data)

    def part(self, piece: int) -> Part:
        rows = self.negatives.part(piece)
        return Part(table_of(MEASURES, [measure(row, self.reference) for row in rows]), len(rows), len(rows))
