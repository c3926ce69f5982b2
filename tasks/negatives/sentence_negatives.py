"""Whole sentences as negatives: the nearest other queries, or the sentences of a file, as rows of `negatives`.

*Nearest* is a control: for each level, the training query at a rank by cosine, without paraphrases and queries of the
same video or of a test split. *Imported* negatives are changed by `clean_text` only. The checks are recorded, not
enforced; a sentence with as many tokens as its query has a slot for each token that differs, and no slots otherwise.
"""

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.artifacts.errors import ArtifactError
from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.rows import TRAINING
from penumbra.tasks.negatives.checks import Candidate, normal_form, sentence_fault
from penumbra.tasks.negatives.files import Negative, NegativesError, digest_of, read_negatives
from penumbra.tasks.negatives.parameters import NegativeSource, NegativesParameters, Queries
from penumbra.tasks.negatives.providers import MaskedQuery
from penumbra.tasks.negatives.reviews import REJECTED
from penumbra.tasks.negatives.selection import LEVELS, STAGE, Choosing, NegativesStage, Query
from penumbra.tasks.stage import read_part, run
from penumbra.tasks.text.embeddings import Encoding, Vectors, cosine, encode, vectors_by_text

BLOCK = 512  # queries compared with all others at once
TOO_FEW = "no training query is that far down"
IMPORTED = "imported"
Row = dict[str, Any]
Chosen = dict[str, dict[int, Candidate]]  # by query id and level


@dataclass(frozen=True)
class SentenceNegatives(NegativesStage):
    """Whole sentences as negatives, with the same columns as those that are chosen from fills."""

    version = 2

    annotations: Artifact
    tags: Artifact
    dictionary: Artifact
    embeddings: Artifact
    sourcing: NegativeSource
    choosing: Choosing
    encoding: Encoding
    reviews: tuple[Artifact, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name}: {self.sourcing.source}"

    def parameters(self) -> dict[str, Any]:
        return self.sourcing.key_parameters() | self.choosing.model_dump(mode="json")

    def key_parameters(self) -> dict[str, Any]:
        return self.sourcing.key_parameters() | self.choosing.model_dump(mode="json", exclude_defaults=True)

    @cached_property
    def vectors(self) -> dict[str, Vectors]:
        return {text: v for part in Store().parts(self.embeddings) for text, v in vectors_by_text(part).items()}

    @abstractmethod
    def sentences(self, piece: int, queries: Sequence[Row], videos: Mapping[str, set[str]]) -> tuple[Chosen, list[Row]]:
        """Return the sentences of part `piece`, and its refusals.

        `queries` are the annotations of its training queries, `videos` the lemmatised queries of each of its videos.
        """

    def part(self, piece: int) -> Part:
        """Return one part: its sentences with the checks that they pass, their cosines and their plausibility."""
        annotations, tags = read_part(piece, self.annotations, self.tags)
        queries = annotations.select(["qid", "vid", "split", "query"]).to_pylist()
        queries = [row for row in queries if row["split"] == TRAINING]
        videos = self.queries_of_videos(annotations)
        chosen, rejected = self.sentences(piece, queries, videos)
        tokens = {row["qid"]: row["tokens"] for row in tags.select(["qid", "tokens"]).to_pylist()}
        rows, words, notes = list[Row](), dict[str, list[str]](), Counter[str]()
        for row in queries:
            masked = MaskedQuery(row["qid"], tokens[row["qid"]], ())
            query = Query(masked, row["query"], same_video=videos[row["vid"]])
            own, fits = chosen.get(row["qid"], {}), partial(self.is_negative, query)
            texts = {level: it.text for level, it in own.items()}
            own |= self.verdicts.approved(row["qid"], query.text, self.sourcing.source, fits, texts)
            for level, it in sorted(own.items()):
                rows.append(self.row(query, level, it, notes))
                words[it.text] = self.tokenise(it.text)
                notes.update(f"negative: {change}" for change in it.changes)
        words |= {row["query"]: [token["text"].lower() for token in tokens[row["qid"]]] for row in rows}
        fresh = sorted(words.keys() - self.vectors.keys())
        vectors = self.vectors | dict(zip(fresh, encode(fresh, self.encoding), strict=True))
        for row in rows:
            row["similarity"] = cosine(vectors[row["query"]], vectors[row["negative"]])
        self.measure(rows, words)
        return Part(table_of(STAGE, rows), len(rows) + len(rejected), len(rows), rejected, notes)


def ranked(
    cosines: Vectors, lemmas: Sequence[str], forbidden: set[str], ceiling: float, ranks: Sequence[int]
) -> list[int]:
    """Return the indices of a query's negatives among the candidates, one for each of `ranks` that is reached.

    Candidates above the ceiling or with `forbidden` lemmas are left out. Two texts with the same lemmas count once, so
    that the levels differ in meaning.
    """
    chosen: list[int] = []
    seen, rank, last = set(forbidden), 0, np.inf
    for index in np.argsort(-cosines, kind="stable"):
        if cosines[index] > ceiling or lemmas[index] in seen:
            continue
        seen.add(lemmas[index])
        rank += 1
        if rank >= ranks[len(chosen)] and cosines[index] < last:
            chosen.append(int(index))
            last = cosines[index]
            if len(chosen) == len(ranks):
                break
    return chosen


@dataclass(frozen=True)
class NearestNegatives(SentenceNegatives):
    """Three other training queries as negatives of each training query, the nearest first."""

    @cached_property
    def candidates(self) -> tuple[list[str], list[str], Vectors]:
        """The training queries that are in no test split, in alphabetical order, their lemmas, and their vectors."""
        leakage = self.leakage
        texts = sorted(text for text in self.vectors if not leakage.leaks(text))
        matrix = np.stack([self.vectors[text] for text in texts]) if texts else np.zeros((0, 0), np.float32)
        return texts, [leakage.lemmatised(text) for text in texts], matrix

    def sentences(self, piece: int, queries: Sequence[Row], videos: Mapping[str, set[str]]) -> tuple[Chosen, list[Row]]:
        chosen, rejected, ranks = Chosen(), list[Row](), self.sourcing.ranks
        origin = self.sourcing.source, self.encoding.sentence_model
        texts, lemmas, matrix = self.candidates
        for start in range(0, len(queries), BLOCK):
            block = queries[start : start + BLOCK]
            # rounded, because the last bits differ between machines
            cosines = (np.stack([self.vectors[row["query"]] for row in block]) @ matrix.T).round(4)
            for query, near in zip(block, cosines, strict=True):
                refused = self.verdicts.rejected(query["qid"], query["query"])
                forbidden = videos[query["vid"]] | {self.leakage.lemmatised(text) for text in refused}
                found = ranked(near, lemmas, forbidden, self.choosing.ceiling, ranks)
                candidates = [Candidate(texts[index], (), *origin) for index in found]
                chosen[query["qid"]] = dict(enumerate(candidates, 1))
                for level in range(len(found) + 1, len(ranks) + 1):
                    rejected.append(rejection(query["qid"], STAGE, TOO_FEW, f"level {level}: {query['query']}"))
        return chosen, rejected


@dataclass(frozen=True)
class ImportedNegatives(SentenceNegatives):
    """The negatives of a file, or of the artifact of an earlier import."""

    imported: Artifact | None = None

    @property
    def path(self) -> Path:
        """The path of the file; for an earlier import, only its name."""
        name = Store().manifest(self.imported).parameters["file"] if self.imported else self.sourcing.file
        return Path(name).expanduser()

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "file": self.path.name}

    def inputs(self) -> dict[str, str]:
        return super().inputs() | ({} if self.imported else {"negatives": digest_of(self.path)})

    @cached_property
    def splits(self) -> dict[str, str]:
        return {row["qid"]: row["split"] for row in Store().rows(self.annotations, ["qid", "split"])}

    @cached_property
    def entries(self) -> dict[str, list[Negative]]:
        """The negatives of the file by qid, sorted by level; '' has those whose qid is of no training query.

        Raises `NegativesError` if no qid is of a training query: the file belongs to another data set.
        """
        if self.imported:
            columns = ["qid", "level", "negative"]
            read = [
                Negative(**row, value=f"level {row['level']}: {row['negative']}")
                for row in Store().rows(self.imported, columns)
            ]
        else:
            read = read_negatives(self.path)
        by_query = defaultdict[str, list[Negative]](list)
        for entry in sorted(read, key=lambda entry: entry.level):
            by_query[entry.qid if self.splits.get(entry.qid) == TRAINING else ""].append(entry)
        if by_query.keys() == {""}:
            first = next(entry.qid for entry in read if not entry.fault)
            raise NegativesError(
                f"{self.path}: no qid is of a training query of {self.dataset}, the first is {first!r:.80}"
            )
        return by_query

    def sentences(self, piece: int, queries: Sequence[Row], videos: Mapping[str, set[str]]) -> tuple[Chosen, list[Row]]:
        chosen, rejected = defaultdict[str, dict[int, Candidate]](dict), list[Row]()
        for entry in self.entries.get("", ()) if piece == 0 else ():
            split = self.splits.get(entry.qid)
            reason = f"its query is of split {split}, not of train" if split else "no query has its qid"
            rejected.append(rejection(entry.qid, STAGE, entry.fault or reason, entry.value))
        for query in queries:
            own, origin = chosen[query["qid"]], (self.sourcing.source, self.path.name)
            for entry in self.entries.get(query["qid"], ()):
                if reason := self._fault(entry, query["query"], own):
                    rejected.append(rejection(entry.qid, STAGE, reason, entry.value))
                else:
                    own[entry.level] = Candidate(entry.negative, (), *origin, changes=entry.changes)
        return chosen, rejected

    def _fault(self, entry: Negative, query: str, levels: Collection[int]) -> str:
        """Return why an entry can't be a negative of a query that has negatives of these levels, or ''."""
        if entry.fault:
            return entry.fault
        if entry.level not in LEVELS:
            return "level is not 1, 2 or 3"
        if entry.level in levels:
            return "its query has another of this level"
        if entry.query and normal_form(entry.query) != normal_form(query):
            return "its query is not what the data set has under its qid"
        is_rejected = self.verdicts.rejects(entry.qid, query, entry.negative)
        return sentence_fault(entry.negative, query) or (REJECTED if is_rejected else "")


def make_sentence_negatives(
    queries: Queries, dictionary: Artifact, settings: NegativesParameters, reviews: tuple[Artifact, ...] = ()
) -> Artifact:
    """Return the artifact of negatives that are whole sentences; for `imported` without a file, of the last import.

    Raises `ArtifactError` if nothing was imported.
    """
    annotations, tags, embeddings, _ = queries
    sourcing = settings.sourcing
    shared = annotations, tags, dictionary, embeddings, sourcing, settings.choosing, settings.encoding, reviews
    if sourcing.source != IMPORTED:
        return run(NearestNegatives(*shared))
    if sourcing.file:
        return run(ImportedNegatives(*shared))
    store, dataset = Store(), annotations.dataset
    for manifest in reversed(store.find(dataset, STAGE)):
        if manifest.parameters.get("source") == IMPORTED and annotations in manifest.parents:
            imported = store.reference(manifest)
            return run(ImportedNegatives(*shared, first_import(imported))) if reviews else imported
    raise ArtifactError(
        f"no negatives of {dataset} were imported: penumbra run import-negatives {dataset} --param file=…, or name "
        "the file with sourcing.file"
    )


def first_import(imported: Artifact) -> Artifact:
    """Return the negatives as they were imported, before any review."""
    parents = Store().manifest(imported).parents
    return next((parent for parent in parents if parent.stage == STAGE), imported)
