"""The report of a `build-negatives` run: what a person wants to know without the code, in the Prefect UI."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from penumbra.artifacts.interface import publish_report
from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.markdown import bold, code, markdown_table
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.references import Negatives
from penumbra.tasks.negatives.reports.providers import comparison, yields
from penumbra.tasks.stage import logger, step

EXAMPLES = 5
LEVELS = 3
FLOW = "build-negatives"


class LevelFigures:
    """What is counted while the negatives stream by."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.similarity: defaultdict[int, float] = defaultdict(float)
        self.providers: Counter[tuple[int, str]] = Counter()
        self.words: dict[int, Counter[str]] = {1: Counter(), 2: Counter(), 3: Counter()}
        self.levels_a_query: Counter[int] = Counter()

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Count a part's rows."""
        queries: Counter[object] = Counter()
        for row in rows:
            level = row["level"]
            self.rows[level] += 1
            self.similarity[level] += row["similarity"]
            self.providers[level, row["provider"]] += 1
            self.words[level].update(row["words"])
            queries[row["qid"]] += 1
        self.levels_a_query.update(queries.values())

    def table(self) -> str:
        """Negatives, mean cosine, distinct fills and the ten commonest fills' share, by level."""
        rows = []
        for level, count in sorted(self.rows.items()):
            fills = self.words[level]
            top = sum(n for _, n in fills.most_common(10)) / max(1, fills.total())
            who = ", ".join(f"{p} {n:,}" for (at, p), n in sorted(self.providers.items()) if at == level)
            rows.append((level, f"{count:,}", f"{self.similarity[level] / count:.3f}", len(fills), f"{top:.0%}", who))
        header = ("level", "negatives", "mean cosine to the query", "distinct fills", "ten commonest", "by provider")
        return markdown_table(header, rows)


def _examples(store: Store, masks: Artifact, negatives: Artifact) -> Iterator[list[Any]]:
    """The lines (level, masked, filled) of each of the first queries that have every level."""
    columns = (["qid", "level", "masked_query"], ["qid", "level", "positive", "query"])
    streams = (store.parts(a, c) for a, c in zip((masks, negatives), columns, strict=True))
    for masked, chosen in zip(*streams, strict=True):
        templates = {(r["qid"], r["level"]): r["masked_query"].replace("<mask>", "▢") for r in masked.to_pylist()}
        for qid, several in groupby(chosen.to_pylist(), key=itemgetter("qid")):
            rows = list(several)
            if len(rows) == LEVELS:
                yield [
                    ("positive", "", bold(rows[0]["positive"])),
                    *((row["level"], templates[qid, row["level"]], row["query"]) for row in rows),
                ]


def write_report(store: Store, made: Negatives, masks: Artifact) -> str:
    """The report's markdown: the run's outcome first, then examples, figures, stages and refusals."""
    stages = [made.annotations, made.tags, made.dictionary, masks, *made.fills, made.negatives,
              made.in_video_negatives, made.rejected, *([made.quality] if made.quality else [])]  # fmt: skip
    manifests = [store.manifest(artifact) for artifact in stages]
    figures = LevelFigures()
    for part in store.parts(made.negatives, ["qid", "level", "words", "provider", "similarity"]):
        figures.add(part.to_pylist())
    masked = store.manifest(masks)
    complete = figures.levels_a_query[3]
    outcome = (
        f"**{figures.rows.total():,} negatives for {masked.taken:,} training queries; {complete:,} queries "
        f"({complete / max(1, masked.taken):.1%}) have all three levels.** They lie in `{made.negatives.path}`."
    )
    examples = islice(_examples(store, masks, made.negatives), EXAMPLES)
    reasons = store.manifest(made.rejected)
    counted = Counter(reason for m in manifests for reason in m.rejected.items())
    refused = sorted(((f"{reason}", count) for reason, count in counted), key=lambda pair: -pair[1])
    sections = [
        f"# {masked.dataset}: hard negatives",
        outcome,
        "## Examples",
        markdown_table(("level", "masked", "query"), chain.from_iterable(examples)),
        "## Figures by level",
        figures.table(),
        "## Providers",
        yields(store, made.fills),
        "## Providers on the same queries",
        comparison(store, made.annotations, made.tags, made.fills),
        "## Stages",
        stage_table(manifests),
        f"## Rejected: {reasons.rows:,}",
        markdown_table(("reason", "count"), refused) if refused else "Nothing was rejected.",
    ]
    return "\n\n".join(sections)


def stage_table(manifests: Iterable[Manifest]) -> str:
    """A line for each stage: what went in and came out, how long it took, and its key."""
    rows = [
        (m.stage, m.unit, f"{m.taken:,}", f"{m.kept:,}", f"{m.taken - m.kept:,}", f"{m.seconds:.1f}", code(m.key))
        for m in manifests
    ]
    return markdown_table(("stage", "counted in", "in", "out", "rejected", "seconds", "key"), rows)


def outcome(store: Store, made: Negatives, masks: Artifact) -> str:
    """How a run ended, in one line: negatives, what was taken from corpus for want of others, what was left out."""
    read, negatives, masked = (store.manifest(it) for it in (made.annotations, made.negatives, masks))
    substitutes = [
        store.manifest(artifact) for artifact in made.fills if "substitutes" in store.manifest(artifact).parameters
    ]
    taken = sum(manifest.kept for manifest in substitutes)
    parts = [f"{negatives.rows:,} negatives for {masked.kept:,} queries"]
    parts += [f"{taken:,} levels that no provider filled were offered corpus's words"] if taken else []
    refused, unmasked = read.taken - read.kept, masked.taken - masked.kept
    parts += [f"{refused:,} of {read.taken:,} rows of the files were rejected"] if refused else []
    parts += [f"{unmasked:,} queries could not be masked"] if unmasked else []
    missing = masked.rows - negatives.rows
    parts += [f"{missing:,} levels have none"] if missing else []
    return "; ".join(parts if refused or unmasked or missing else [*parts, "none is missing"])


@step("report")
def report_negatives(made: Negatives, masks: Artifact) -> str:
    """Publish the report of a run; returns its outcome in one line."""
    store = Store()
    publish_report(made.annotations.dataset, FLOW, write_report(store, made, masks))
    line = outcome(store, made, masks)
    logger().info(line)
    return line
