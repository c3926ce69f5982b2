"""Read people's reviews of negatives, and make the next negatives with them: `penumbra review`."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, StringConstraints, ValidationError

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Artifact, Part, Work, rejection
from penumbra.artifacts.markdown import counted, truncated
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.data.rows import clean_text
from penumbra.tasks.negatives.parameters import NegativeSource
from penumbra.tasks.negatives.reviews import EDIT, FILLS, STAGE, Row, reviews_of
from penumbra.tasks.negatives.selection import STAGE as NEGATIVES
from penumbra.tasks.negatives.selection import Choosing, ChosenNegatives, NegativesStage
from penumbra.tasks.negatives.sentence_negatives import IMPORTED, ImportedNegatives, NearestNegatives, first_import
from penumbra.tasks.text.embeddings import Encoding

SHOWN = 100  # characters of a refused row
LARGEST = 100_000_000  # bytes of a review, of some hundred thousand verdicts
Settings = TypeVar("Settings", bound=BaseModel)


class ReviewError(PenumbraError):
    """A file is no review of negatives of this data set; the message names file, line and remedy."""


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("is not printable")
    return name


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("has no time in UTC") from None


class Header(BaseModel):
    """The first line of a review: the negatives and who reviewed them."""

    dataset: str
    stage: Literal["negatives"]
    key: str
    reviewer: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100), AfterValidator(_printable)
    ]


class Verdict(BaseModel):
    """A further line of a review: a verdict; `edited` is the sentence that replaces the negative."""

    qid: str
    level: int
    negative: str
    verdict: Literal["accept", "reject", "edit"]
    time: Annotated[AwareDatetime, AfterValidator(_in_utc)]
    edited: str | None = None


@dataclass
class Review:
    """A reviewer's verdicts on an artifact: the rows of the table `reviews`, and the refused ones."""

    digest: str
    reviewer: str
    reviewed: Artifact
    rows: list[Row]
    refused: list[dict[str, str]]


def read_review(store: Store, path: Path, dataset: str) -> Review:
    """Return the review in a file; raise `ReviewError` if it is no review of these negatives."""
    save = f"save it again on the page that `penumbra browse {dataset}` writes"
    try:
        with path.open("rb") as stream:  # a device such as /dev/zero has no end
            content = stream.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ReviewError(f"{path} has more than {LARGEST / 1e6:g} MB, too much for a review: {save}")
        lines = [(at, line) for at, line in enumerate(content.decode("utf-8-sig").split("\n"), 1) if line.strip()]
        header = Header.model_validate_json(lines[0][1] if lines else "")
    except OSError as error:
        raise ReviewError(f"{path} can't be read ({error.strerror}): {save}") from None
    except UnicodeDecodeError:
        raise ReviewError(f"{path} is no UTF-8 text: {save}") from None
    except ValidationError as error:
        raise ReviewError(f"{path}: its first line is no header of a review ({_fault(error)}): {save}") from None
    known = {manifest.key: store.reference(manifest) for manifest in store.find(dataset, NEGATIVES)}
    if header.dataset != dataset or header.key not in known:
        reviewed, there = f"{header.dataset}/{NEGATIVES}/{header.key}", ", ".join(known) or "nothing yet"
        raise ReviewError(f"{path} reviews {reviewed!r:.{SHOWN}}, but {dataset}/{NEGATIVES} has: {there}")
    review = Review(sha256(content).hexdigest(), header.reviewer, known[header.key], [], [])
    _take(store, review, path, lines[1:])
    if not review.rows:
        why = [f"{refused['value']}: {refused['reason']}" for refused in review.refused[:1]] or [save]
        raise ReviewError(f"{path} has no verdict that can be used: {why[0]}")
    return review


def _take(store: Store, review: Review, path: Path, lines: list[tuple[int, str]]) -> None:
    """Add each line of a file to the rows of a review, or to its refused rows."""
    chosen = {(row["qid"], row["level"]): row for row in store.rows(review.reviewed)}
    source = store.manifest(review.reviewed).parameters.get("source", FILLS)
    fault_of = cache(lambda: edit_faults(store, review.reviewed))  # it reads the whole data set
    for number, line in lines:
        qid = ""
        try:
            given = Verdict.model_validate_json(line, strict=True)
            qid, own = given.qid, chosen.get((given.qid, given.level))
            if not own:
                raise ValueError("the negatives have no such qid and level")
            if given.negative != own["negative"]:
                raise ValueError("negative is not the text that the negatives have")
            edited = clean_text(given.edited or "")[0] if given.verdict == EDIT else None
            if edited is not None and (fault := fault_of()(own, edited) if edited else "edited sentence is missing"):
                raise ValueError(fault)
        except ValueError as error:  # pydantic's, too
            reason = _fault(error) if isinstance(error, ValidationError) else str(error)
            place = f"{path.name}, line {number}, by {review.reviewer} ({truncated(line, SHOWN)})"
            review.refused.append(rejection(qid, STAGE, reason, place))
            continue
        kept = {name: own[name] for name in ("qid", "level", "query", "negative", "words", "provider", "model")}
        time = given.time.isoformat(timespec="milliseconds")
        about = {"verdict": given.verdict, "edited": edited, "time": time, "source": source}
        review.rows.append({**kept, **about, "reviewer": review.reviewer})


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    return " ".join([*map(str, first["loc"]), first["msg"]])


def edit_faults(store: Store, reviewed: Artifact) -> Callable[[Row, str], str]:
    """Return a function of a negative and an edited sentence that gives why the sentence can't replace it, or ''.

    It applies the checks of imported negatives, and the checks for leaks of test splits.
    """
    stage, of_video = stage_of(store, reviewed), dict[str, set[str]]()  # by query id
    for part in store.parts(stage.annotations, ["qid", "vid", "query"]):
        videos = stage.queries_of_videos(part)
        of_video |= {row["qid"]: videos[row["vid"]] for row in part.to_pylist()}
    leakage, names = stage.leakage, stage.choosing.checks
    return lambda row, edited: leakage.refusal(edited, row["query"], of_video[row["qid"]], names)


def keep(store: Store, review: Review) -> Artifact:
    """Store a review permanently and return its artifact; the same file has the same key."""
    about = {"reviewer": review.reviewer, "reviewed": f"{NEGATIVES}/{review.reviewed.key}"}
    work = Work(review.reviewed.dataset, STAGE, 1, about, inputs={"review": review.digest}, unit="verdict")
    taken = len(review.rows) + len(review.refused)
    part = Part(table_of(STAGE, review.rows), taken, len(review.rows), review.refused)
    return store.build(work, [lambda: part])


# -- the next negatives -----------------------------------------------------------------------------------------------


def settings_of(store: Store, artifact: Artifact, kind: type[Settings]) -> Settings:
    """Return the parameters of a group that an artifact was made with."""
    parameters = store.manifest(artifact).parameters
    return kind.model_validate({name: parameters[name] for name in kind.model_fields if name in parameters})


def stage_of(store: Store, reviewed: Artifact) -> NegativesStage:
    """Return the stage that made negatives, with all reviews of their data set; it asks no provider again."""
    parents = store.manifest(reviewed).parents
    of = {parent.stage: parent for parent in parents}
    annotations, tags, dictionary, embeddings = (
        of[name] for name in ("annotations", "tags", "dictionary", "embeddings")
    )
    encoding, reviews = settings_of(store, embeddings, Encoding), reviews_of(reviewed.dataset)
    last = settings_of(store, reviewed, Choosing), encoding, reviews
    if fills := tuple(parent for parent in parents if parent.stage == "fills"):
        return ChosenNegatives(annotations, tags, of["masks"], dictionary, fills, embeddings, *last)
    source = settings_of(store, reviewed, NegativeSource).model_copy(update={"file": ""})
    shared = annotations, tags, dictionary, embeddings, source, *last
    if source.source == IMPORTED:
        return ImportedNegatives(*shared, first_import(reviewed))
    return NearestNegatives(*shared)


def differences(store: Store, before: Artifact, after: Artifact) -> str:
    """Describe how many sentences of the earlier negatives were replaced, and how many were removed."""
    old, new = (
        {(row["qid"], row["level"]): row["negative"] for row in store.rows(artifact)} for artifact in (before, after)
    )
    replaced = sum(place in new and new[place] != text for place, text in old.items())
    return f"{replaced:,} replaced, {len(old.keys() - new.keys()):,} removed, {counted(len(new), 'negative')}"
