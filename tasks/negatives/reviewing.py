"""Take people's reviews of negatives, and make the next negatives with them: `penumbra review`."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, Work, rejection
from penumbra.artifacts.markdown import counted, truncated
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.rows import clean_text
from penumbra.tasks.negatives.checks import LeakageFilter, queries_with_tokens
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.reviews import EDIT, FILLS, STAGE, VERDICTS, Row, reviews_of
from penumbra.tasks.negatives.selection import STAGE as NEGATIVES
from penumbra.tasks.negatives.selection import Choosing, ChosenNegatives
from penumbra.tasks.negatives.sentence_negatives import (
    IMPORTED,
    ImportedNegatives,
    NearestNegatives,
    SentenceNegatives,
    first_import,
)
from penumbra.tasks.stage import build
from penumbra.tasks.text.embeddings import Encoding

HEADER = ("dataset", "stage", "key", "reviewer")
LONGEST_NAME = 100  # characters of a reviewer's name
SAVE = "save it again on the page that `penumbra browse {}` writes"
SHOWN = 60  # characters of a value in a message


class ReviewError(PenumbraError):
    """A file is no review of negatives of this data set; the message names file, line and remedy."""


@dataclass
class Review:
    """A reviewer's verdicts on an artifact: the rows of the table `reviews`, and the refused ones."""

    path: Path
    digest: str
    reviewer: str
    reviewed: Artifact
    rows: list[Row]
    refused: list[dict[str, str]]

    @property
    def counts(self) -> Counter[str]:
        """The number of verdicts of each kind."""
        return Counter(row["verdict"] for row in self.rows)


def read_review(store: Store, path: Path, dataset: str) -> Review:
    """Return the review in a file; raise `ReviewError` if it is none, or is of other negatives."""
    save = SAVE.format(dataset)
    digest, found = _lines(path, save)
    (_, header), *rows = found
    if not isinstance(header, dict) or not all(isinstance(header.get(name), str) for name in HEADER):
        raise ReviewError(f"{path}: its first line is no header with {', '.join(HEADER)}: {save}")
    of, stage, key, reviewer = (header[name].strip() for name in HEADER)
    if of != dataset or stage != NEGATIVES:
        raise ReviewError(f"{path} reviews {of!r:.{SHOWN}}/{stage!r:.{SHOWN}}, not {dataset}/{NEGATIVES}")
    if not reviewer or not reviewer.isprintable() or len(reviewer) > LONGEST_NAME:
        raise ReviewError(f"{path}: the reviewer {reviewer!r:.{SHOWN}} is no name of 1 to {LONGEST_NAME} characters")
    known = {manifest.key: store.reference(manifest) for manifest in store.find(dataset, NEGATIVES)}
    if key not in known:
        there = ", ".join(known) or "nothing yet"
        raise ReviewError(f"{path} reviews {dataset}/{NEGATIVES}/{key:.{SHOWN}}, which is not there; there is: {there}")
    if not rows:
        raise ReviewError(f"{path} has no verdict: {save}")
    review = Review(path, digest, reviewer, known[key], [], [])
    _take(store, review, rows)
    if not review.rows:
        raise ReviewError(f"no verdict of {path} can be used; {described(review.refused[0])}")
    return review


def _lines(path: Path, save: str) -> tuple[str, list[tuple[int, Any]]]:
    """Return the digest of a file, and the number and content of each line of JSON."""
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise ReviewError(f"{path} can't be read ({error.strerror}): {save}") from None
    except UnicodeDecodeError:
        raise ReviewError(f"{path} is no UTF-8 text: {save}") from None
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            found += [(number, json.loads(line))] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise ReviewError(f"{path}, line {number} is no JSON ({error}): mend it; nothing was taken") from None
    if not found:
        raise ReviewError(f"{path} is empty: {save}")
    return sha256(content).hexdigest(), found


def described(refused: Row) -> str:
    """Return a refused row in one line."""
    return f"{refused['value']}: {refused['reason']}"


def _take(store: Store, review: Review, rows: Sequence[tuple[int, Any]]) -> None:
    """Divide the rows of a file into those of the table and the refused ones."""
    manifest = store.manifest(review.reviewed)
    chosen = {(row["qid"], row["level"]): row for part in store.parts(review.reviewed) for row in part.to_pylist()}
    source = manifest.parameters.get("source", FILLS)
    edits = Edits(store, review.reviewed)
    for number, given in rows:
        row = given if isinstance(given, dict) else {}
        qid, level, verdict = row.get("qid"), row.get("level"), row.get("verdict")
        is_place = isinstance(qid, str) and type(level) is int
        own = chosen.get((qid, level)) if is_place else None
        edited, time, fault = row.get("edited"), _time(row.get("time")), ""
        edited = clean_text(edited)[0] if isinstance(edited, str) else ""
        if not isinstance(given, dict):
            fault = "row is no object"
        elif verdict not in VERDICTS:
            fault = f"verdict is none of {', '.join(VERDICTS)}"
        elif own is None:
            fault = "the negatives have no such qid and level"
        elif row.get("negative") != own["negative"]:
            fault = "negative is not the text that the negatives have"
        elif not time:
            fault = "time is no date and time of ISO 8601"
        elif verdict == EDIT:
            fault = edits.fault(own, edited)
        if own is None or fault:
            place = f"{review.path.name}, line {number}, by {review.reviewer}"
            values = [*([] if verdict in VERDICTS else [verdict]), *([qid, level] if own is None else [])]
            values = values or [edited if verdict == EDIT and edited else row.get("negative", given)]
            shown = " ".join(truncated(str(value), SHOWN) for value in values)
            review.refused.append(rejection(str(qid or ""), STAGE, fault, f"{place} ({shown})"))
            continue
        kept = {name: own[name] for name in ("qid", "level", "query", "negative", "words", "provider", "model")}
        about = {"verdict": verdict, "edited": edited if verdict == EDIT else None, "time": time, "source": source}
        review.rows.append({**kept, **about, "reviewer": review.reviewer})


def _time(text: Any) -> str:
    """Return a time in UTC, or '' if the text is none."""
    try:
        time = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return ""
    return time.astimezone(UTC).isoformat(timespec="milliseconds") if time.tzinfo else ""


class Edits:
    """The checks of edited sentences: those of negatives that are imported, and none may leak a test split."""

    def __init__(self, store: Store, reviewed: Artifact) -> None:
        self._store, self._reviewed = store, reviewed
        self._leakage: LeakageFilter | None = None

    def fault(self, row: Row, edited: str) -> str:
        """Return why a sentence can't take the place of a negative, or ''."""
        if not edited:
            return "edited sentence is missing"
        if self._leakage is None:
            parents = parents_of(self._store, self._reviewed)
            [annotations], [tags] = parents["annotations"], parents["tags"]
            self._names = choosing_of(self._store, self._reviewed)
            self._leakage = LeakageFilter(queries_with_tokens(annotations, tags), every=self._names.guard == "all")
            self._vids, self._videos = dict[str, str](), defaultdict[str, set[str]](set)
            for part in self._store.parts(annotations, ["qid", "vid", "query"]):
                for query in part.to_pylist():
                    self._vids[query["qid"]] = query["vid"]
                    self._videos[query["vid"]].add(self._leakage.lemmatised(query["query"]))
        queries = self._videos[self._vids[row["qid"]]]
        return self._leakage.refusal(edited, row["query"], queries, self._names.checks)


def keep(store: Store, review: Review) -> Artifact:
    """Store a review for good and return its artifact; the same file has the same key."""
    about = {"reviewer": review.reviewer, "reviewed": f"{NEGATIVES}/{review.reviewed.key}"}
    work = Work(review.reviewed.dataset, STAGE, 1, about, inputs={"review": review.digest}, unit="verdict")
    taken = len(review.rows) + len(review.refused)
    part = Part(table_of(STAGE, review.rows), taken, len(review.rows), review.refused)
    return store.build(work, [lambda: part])


# -- the next negatives -----------------------------------------------------------------------------------------------


def parents_of(store: Store, artifact: Artifact) -> dict[str, list[Artifact]]:
    """Return the parents of an artifact by stage."""
    parents = defaultdict[str, list[Artifact]](list)
    for parent in store.manifest(artifact).parents:
        parents[parent.stage].append(parent.model_copy(update={"root": store.root}))
    return parents


def choosing_of(store: Store, negatives: Artifact) -> Choosing:
    """Return the settings of the checks that negatives were made with."""
    parameters = store.manifest(negatives).parameters
    return Choosing.model_validate({name: parameters[name] for name in Choosing.model_fields if name in parameters})


def next_negatives(store: Store, reviewed: Artifact) -> Artifact:
    """Make negatives anew from what they were made from, with all reviews of their data set; no provider is asked."""
    parents, parameters = parents_of(store, reviewed), store.manifest(reviewed).parameters
    [annotations], [tags], [dictionary] = (parents[stage] for stage in ("annotations", "tags", "dictionary"))
    [embeddings] = parents["embeddings"]
    encoded = store.manifest(embeddings).parameters
    encoding = Encoding.model_validate({name: encoded[name] for name in Encoding.model_fields if name in encoded})
    last = choosing_of(store, reviewed), encoding, reviews_of(reviewed.dataset)
    source = parameters.get("source", FILLS)
    stage: ChosenNegatives | SentenceNegatives
    if source == FILLS:
        [masks], fills = parents["masks"], tuple(parents["fills"])
        stage = ChosenNegatives(annotations, tags, masks, dictionary, fills, embeddings, *last)
        return build(stage)
    ranks = {"ranks": parameters["ranks"]} if "ranks" in parameters else {}
    shared = annotations, tags, dictionary, embeddings, NegativeSource(source=source, **ranks), *last
    stage = ImportedNegatives(*shared, first_import(reviewed)) if source == IMPORTED else NearestNegatives(*shared)
    return build(stage)


def differences(store: Store, before: Artifact, after: Artifact) -> str:
    """Return in words how many sentences of the negatives before were replaced, and how many have no successor."""
    old, new = (dict(_texts(store, artifact)) for artifact in (before, after))
    replaced = sum(place in new and new[place] != text for place, text in old.items())
    return f"{replaced:,} replaced, {len(old.keys() - new.keys()):,} without another, {counted(len(new), 'negative')}"


def _texts(store: Store, negatives: Artifact) -> Iterator[tuple[tuple[str, int], str]]:
    for part in store.parts(negatives, ["qid", "level", "negative"]):
        yield from (((row["qid"], row["level"]), row["negative"]) for row in part.to_pylist())
