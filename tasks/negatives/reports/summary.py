"""Stage `summary`: what the report of a run of build-negatives says that all rows are read for.

A run that finds everything done reads these few sections instead of millions of rows.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import bold, markdown_table
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.reports.providers import comparison, yield_table
from penumbra.tasks.stage import Stage, run

EXAMPLES = 5
LEVELS = 3


@dataclass(frozen=True)
class Summary(Stage):
    """The counted sections, the outcome first; negatives that are whole sentences have no masks and no fills."""

    name = "summary"
    version = 1
    unit = "section"
    pieces = (0,)
    by_workers = False  # it is one part

    annotations: Artifact
    tags: Artifact
    masks: Artifact | None
    fills: tuple[Artifact, ...]
    negatives: Artifact

    def part(self, piece: int) -> Part:
        """Count them all."""
        sections = _filled(Store(), self, self.masks) if self.masks else _whole(Store(), self)
        rows = [{"section": title, "text": text} for title, text in sections.items()]
        return Part(table_of(self.name, rows), len(rows), len(rows))

    def shown(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """None: the report shows them."""
        return []


def summarise(
    annotations: Artifact, tags: Artifact, masks: Artifact | None, fills: tuple[Artifact, ...], negatives: Artifact
) -> Artifact:
    """Count what the report of a run says."""
    return run(Summary(annotations, tags, masks, fills, negatives))


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


def _filled(store: Store, of: Summary, masks: Artifact) -> dict[str, str]:
    """The sections of negatives that are filled masks, by title."""
    figures = LevelFigures()
    for part in store.parts(of.negatives, ["qid", "level", "words", "provider", "similarity"]):
        figures.add(part.to_pylist())
    taken, complete = store.manifest(masks).taken, figures.levels_a_query[LEVELS]
    examples = islice(_filled_examples(store, masks, of.negatives), EXAMPLES)
    return {
        "Outcome": f"**{figures.rows.total():,} negatives for {taken:,} training queries; {complete:,} queries "
        f"({complete / max(1, taken):.1%}) have all three levels.**",
        "Examples": markdown_table(("level", "masked", "sentence"), chain.from_iterable(examples)),
        "Figures by level": figures.table(),
        "Providers": yield_table(store, of.fills),
        "Providers on the same queries": comparison(store, of.annotations, of.tags, of.fills),
    }


def _filled_examples(store: Store, masks: Artifact, negatives: Artifact) -> Iterator[list[Any]]:
    """The lines (level, masked, filled) of each of the first queries that have every level."""
    columns = (["qid", "level", "masked_query"], ["qid", "level", "query", "negative"])
    streams = (store.parts(a, c) for a, c in zip((masks, negatives), columns, strict=True))
    for masked, chosen in zip(*streams, strict=True):
        templates = {(r["qid"], r["level"]): r["masked_query"].replace("<mask>", "▢") for r in masked.to_pylist()}
        for qid, several in groupby(chosen.to_pylist(), key=itemgetter("qid")):
            rows = list(several)
            if len(rows) == LEVELS:
                yield [
                    ("query", "", bold(rows[0]["query"])),
                    *((row["level"], templates[qid, row["level"]], row["negative"]) for row in rows),
                ]


def _whole(store: Store, of: Summary) -> dict[str, str]:
    """The sections of negatives that are whole sentences, by title."""
    figures, checks, rows = LevelFigures(), Counter[tuple[int, str]](), list[dict[str, Any]]()
    for part in store.parts(of.negatives):
        several = part.to_pylist()
        figures.add(several)
        checks.update((row["level"], check) for row in several for check in row["checks"])
        rows += several if not rows else []
    manifest = store.manifest(of.negatives)
    return {
        "Outcome": f"**{manifest.rows:,} negatives, {manifest.taken - manifest.kept:,} rejected.**",
        "Examples": markdown_table(("level", "sentence"), _whole_examples(rows)),
        "Figures by level": figures.table(),
        "Checks that they pass, of which none is enforced": _checks_table(figures, checks),
    }


def _whole_examples(rows: list[dict[str, Any]]) -> list[tuple[Any, str]]:
    """The lines of the first queries: each query, and its negatives."""
    lines: list[tuple[Any, str]] = []
    for _, several in islice(groupby(rows, key=itemgetter("qid")), EXAMPLES):
        negatives = list(several)
        lines.append(("query", bold(negatives[0]["query"])))
        lines += [(row["level"], row["negative"]) for row in negatives]
    return lines


def _checks_table(figures: LevelFigures, checks: Counter[tuple[int, str]]) -> str:
    """The share of each level's negatives that pass a check."""
    levels = sorted(figures.rows)
    names = sorted({name for _, name in checks})
    lines = [(name, *(f"{checks[level, name] / figures.rows[level]:.1%}" for level in levels)) for name in names]
    return markdown_table(("check", *(f"level {level}" for level in levels)), lines, cell=str)
