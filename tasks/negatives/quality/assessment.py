"""Stage `quality`: the quality report of an artifact of negatives, or of anyone's file, as a table of figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.digests import file_digest
from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.parameters import QualityConfig
from penumbra.tasks.negatives.quality.artifact import ArtifactNegatives
from penumbra.tasks.negatives.quality.figures import Vectors
from penumbra.tasks.negatives.quality.file import FileNegatives
from penumbra.tasks.negatives.quality.measures import Measures, measured
from penumbra.tasks.negatives.quality.page import write_page
from penumbra.tasks.negatives.quality.reference import Tokens, read_human, read_reference
from penumbra.tasks.negatives.quality.report import Judges, assess_rows
from penumbra.tasks.negatives.quality.review import Sheet
from penumbra.tasks.negatives.quality.source import AnnotatedDataset
from penumbra.tasks.negatives.quality.yields import yield_figures
from penumbra.tasks.stage import Stage, build, run, side_effect_task
from penumbra.tasks.text.embeddings import Encoding, encode, vectors_by_text
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline, tag_texts

STAGE = "quality"
LINES = "lines of human text"


def judges_of(data: AnnotatedDataset, encoding: Encoding) -> Judges:
    """The sentence encoder, which has what the stage `embeddings` encoded, and the pipeline that tagged the queries."""
    model = data.store.manifest(data.tags).parameters["spacy_model"] if data.tags else SHIPPED_PIPELINE
    nlp = load_pipeline(str(model))

    def embedded() -> Iterator[pa.Table]:
        for part in data.store.parts(data.embeddings) if data.embeddings else ():
            if encoding.sentence_model in part["encoder"].to_pylist()[:1]:
                yield part

    def vectors(texts: set[str]) -> Vectors:
        known: Vectors = {}
        wanted = pa.array(texts, pa.string())
        for part in embedded():
            known |= vectors_by_text(part.filter(pc.is_in(part["text"], wanted)))
        missing = sorted(texts - known.keys())
        return known | dict(zip(missing, encode(missing, encoding), strict=True))

    def training() -> Iterator[Vectors]:
        return map(vectors_by_text, embedded())

    def parse(texts: set[str]) -> dict[str, Tokens]:
        several = sorted(texts)
        return dict(zip(several, tag_texts(several, nlp), strict=True))

    return Judges(vectors, training, parse)


def human_lines(path: Path | None, judges: Judges) -> list[tuple[str, Tokens]]:
    """A text file's lines, parsed."""
    if path is None:
        return []
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    parsed = judges.parse(set(lines))
    return [(line, parsed[line]) for line in lines]


def quality_part(
    negatives: ArtifactNegatives | FileNegatives,
    measures: Sequence[Artifact],
    data: AnnotatedDataset,
    encoding: Encoding,
    judging: QualityConfig,
    human: Path | None = None,
    sheet: Sheet | None = None,
) -> Part:
    """Judge negatives; the notes of the part say what could not be judged.

    `measures` are those of an artifact, and then of what each provider had drawn.
    """
    judges = judges_of(data, encoding)
    written = read_human(data.annotated, human_lines(human, judges))
    if isinstance(negatives, FileNegatives):
        reference = read_reference(data.name, data.annotated, {row.positive for row in negatives.rows}, written)
        own, drawn = measured(negatives.rows, reference), []
    else:
        reference = read_reference(data.name, data.annotated, human=written)
        own, *drawn = (Store().table(artifact) for artifact in measures)
    report = assess_rows(negatives, own, drawn, reference, judges, judging)
    rows = report.figures.rows
    if isinstance(negatives, ArtifactNegatives):
        rows += yield_figures(negatives)
    rows += sheet.figures() if sheet else []
    part = Part(table_of(STAGE, rows), len(rows), len(rows))
    part.notes.update(dict.fromkeys(report.notes, 1))
    return part


@dataclass(frozen=True)
class Quality(Stage):
    """The figures of negatives, an artifact's or a file's."""

    name = STAGE
    version = 4
    unit = "figure"
    pieces = (0,)

    negatives: ArtifactNegatives | FileNegatives
    measures: tuple[Artifact, ...]
    data: AnnotatedDataset
    encoding: Encoding
    judging: QualityConfig
    human: Path | None = None
    sheet: Sheet | None = None

    @property
    def dataset(self) -> str:
        """The data set that judges."""
        return self.data.name

    @property
    def parents(self) -> tuple[Artifact, ...]:
        """The negatives, and what judges them, as far as they are artifacts."""
        own = self.negatives.artifact if isinstance(self.negatives, ArtifactNegatives) else None
        several = (own, *self.measures, self.data.annotations, self.data.tags)
        return tuple(artifact for artifact in several if artifact)

    def parameters(self) -> dict[str, Any]:
        """How the negatives are judged, and by which encoder."""
        settings = self.judging.model_dump(mode="json", exclude={"judge"})
        return {**settings, "sentence_model": self.encoding.sentence_model}

    def determines(self) -> dict[str, Any]:
        """The same, without what has its default."""
        settings = self.judging.model_dump(mode="json", exclude={"judge"}, exclude_defaults=True)
        return {**settings, "sentence_model": self.encoding.sentence_model}

    def inputs(self) -> dict[str, str]:
        """The digests of the files that are read."""
        files = {LINES: self.human, "review": self.sheet.path if self.sheet else None}
        if isinstance(self.negatives, FileNegatives):
            files["negatives"] = self.negatives.path
        found = {f"{name}: {path.name}": file_digest(path) for name, path in files.items() if path}
        folder = Path(self.encoding.sentence_model)
        return {**found, "sentence model": file_digest(folder)} if folder.is_dir() else found

    def part(self, piece: int) -> Part:
        """Judge all of them: the report is one part."""
        return quality_part(
            self.negatives, self.measures, self.data, self.encoding, self.judging, self.human, self.sheet
        )


def judge_now(
    negatives: ArtifactNegatives | FileNegatives,
    data: AnnotatedDataset,
    encoding: Encoding,
    judging: QualityConfig,
    human: Path | None = None,
    sheet: Sheet | None = None,
) -> Artifact:
    """The report's artifact, made now where it is not there: needs no Prefect."""
    several = (negatives, *negatives.drawn()) if isinstance(negatives, ArtifactNegatives) else ()
    measures = tuple(build(Measures(each, data)) for each in several)
    return build(Quality(negatives, measures, data, encoding, judging, human, sheet))


def page_of(store: Store, quality: Artifact) -> str:
    """The report as a page: tables and charts in markdown."""
    manifest = store.manifest(quality)
    rows: pa.Table = store.table(quality)
    return write_page(rows.to_pylist(), manifest, quality.path)


def assess(
    negatives: Artifact,
    fills: Sequence[Artifact],
    annotations: Artifact,
    tags: Artifact,
    embeddings: Artifact,
    encoding: Encoding,
    judging: QualityConfig,
) -> Artifact | None:
    """Judge the negatives of a run, beside the fills they were chosen from, where that is asked for."""
    if not judging.judge:
        return None
    store = Store()
    data = AnnotatedDataset(store, negatives.dataset, annotations, tags, embeddings)
    several = [ArtifactNegatives(store, artifact) for artifact in (negatives, *fills)]
    measures = tuple(run(Measures(each, data)) for each in several)
    quality = run(Quality(several[0], measures, data, encoding, judging))
    _show(quality)
    return quality


@side_effect_task("report")
def _show(quality: Artifact) -> None:
    publish_report(quality.dataset, STAGE, page_of(Store(), quality))
