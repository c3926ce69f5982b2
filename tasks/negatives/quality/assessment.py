"""Stage `quality`: the quality report of an artifact of negatives, or of anyone's file, as a table of figures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from penumbra.artifacts.interface import publish_report
from penumbra.artifacts.manifest import Artifact, Part, Work, file_digest
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.quality.artifact import ArtifactNegatives
from penumbra.tasks.negatives.quality.figures import Vectors
from penumbra.tasks.negatives.quality.file import FileNegatives
from penumbra.tasks.negatives.quality.judging import Judging
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.page import write_page
from penumbra.tasks.negatives.quality.reference import Tokens, read_reference
from penumbra.tasks.negatives.quality.report import Judges, Report, assess_rows
from penumbra.tasks.negatives.quality.review import Sheet
from penumbra.tasks.negatives.quality.source import AnnotatedDataset
from penumbra.tasks.negatives.quality.yields import yields
from penumbra.tasks.stage import run_stage
from penumbra.tasks.text.embeddings import Encoding, encode, vectors_by_text
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, tag_texts
from prefect import task

STAGE = "quality"
VERSION = 2
LINES = "lines of human text"


def judges_of(data: AnnotatedDataset, encoding: Encoding) -> Judges:
    """The sentence encoder, which has what the stage `embeddings` encoded, and the pipeline that tagged the queries."""
    known: Vectors = {}
    for part in data.store.parts(data.embeddings) if data.embeddings else ():
        if encoding.sentence_model in part["encoder"].to_pylist()[:1]:
            known |= vectors_by_text(part)
    model = data.store.manifest(data.tags).parameters["spacy_model"] if data.tags else SHIPPED_PIPELINE
    nlp = load_pipeline(str(model))

    def vectors(texts: set[str]) -> Vectors:
        missing = sorted(texts - known.keys())
        known.update(zip(missing, encode(missing, encoding), strict=True))
        return known

    def parse(texts: set[str]) -> dict[str, Tokens]:
        several = sorted(texts)
        return dict(zip(several, tag_texts(several, nlp), strict=True))

    return Judges(vectors, parse)


def human_lines(path: Path | None, judges: Judges) -> list[tuple[str, Tokens]]:
    """A text file's lines, parsed."""
    if path is None:
        return []
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    parsed = judges.parse(set(lines))
    return [(line, parsed[line]) for line in lines]


def quality_part(
    negatives: ArtifactNegatives | FileNegatives, data: AnnotatedDataset, encoding: Encoding, judging: Judging,
    human: Path | None = None, sheet: Sheet | None = None,
) -> Part:  # fmt: skip
    """Judge negatives; the notes of the part say what could not be judged."""
    judges = judges_of(data, encoding)
    reference = read_reference(data.name, data.annotated, human_lines(human, judges))
    drawn: Sequence[Iterable[list[Negative]]] = ()
    if isinstance(negatives, ArtifactNegatives):
        drawn = [other.parts() for other in negatives.drawn()]
    report: Report = assess_rows(negatives.parts(), reference, judges, judging, drawn)
    rows = report.figures.rows
    if isinstance(negatives, ArtifactNegatives):
        rows += yields(negatives)
    rows += sheet.figures() if sheet else []
    part = Part(table_of(STAGE, rows), len(rows), len(rows))
    part.notes.update(dict.fromkeys(report.notes, 1))
    return part


def work(
    negatives: ArtifactNegatives | FileNegatives, data: AnnotatedDataset, encoding: Encoding, judging: Judging,
    human: Path | None = None, sheet: Sheet | None = None,
) -> Work:  # fmt: skip
    """Key material: the negatives, what judges them, and how."""
    files = {LINES: human, "review": sheet.path if sheet else None}
    inputs = {f"{name}: {path.name}": file_digest(path) for name, path in files.items() if path}
    parents = [artifact for artifact in (data.annotations, data.tags) if artifact]
    if isinstance(negatives, ArtifactNegatives):
        parents.insert(0, negatives.artifact)
    else:
        inputs[f"negatives: {negatives.path.name}"] = file_digest(negatives.path)
    folder = Path(encoding.sentence_model)
    if folder.is_dir():
        inputs["sentence model"] = file_digest(folder)
    settings = judging.model_dump(mode="json", exclude={"judge"})
    return Work(
        dataset=data.name,
        stage=STAGE,
        version=VERSION,
        parameters={**settings, "sentence_model": encoding.sentence_model},
        parents=tuple(parents),
        inputs=inputs,
        unit="figure",
    )


def judge_now(
    store: Store, negatives: ArtifactNegatives | FileNegatives, data: AnnotatedDataset, encoding: Encoding,
    judging: Judging, human: Path | None = None, sheet: Sheet | None = None,
) -> Artifact:  # fmt: skip
    """The report's artifact, made now where it is not there: needs no Prefect."""
    make = partial(quality_part, negatives, data, encoding, judging, human, sheet)
    return store.build(work(negatives, data, encoding, judging, human, sheet), [make])


def page_of(store: Store, quality: Artifact) -> str:
    """The report as a page: tables and charts in markdown."""
    manifest = store.manifest(quality)
    rows: pa.Table = store.table(quality)
    return write_page(rows.to_pylist(), manifest, quality.path)


@task(name=STAGE)
def assess(negatives: Artifact, encoding: Encoding, judging: Judging) -> Artifact:
    """Judge the negatives of a run, and show the figures."""
    store = Store()
    judged = ArtifactNegatives(store, negatives)
    data = judged.dataset()

    def parts() -> Iterator[Callable[[], Part]]:
        yield partial(quality_part, judged, data, encoding, judging)

    artifact = run_stage(work(judged, data, encoding, judging), parts, 1)
    publish_report(negatives.dataset, STAGE, page_of(store, artifact))
    return artifact
