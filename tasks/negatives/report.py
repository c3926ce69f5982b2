"""The report of a run of `build-negatives`, with two stages of its own.

Stage `rejected` is one table of everything that the stages of a run refused. Stage `summary` holds what the report
counts over all rows, so that a run that finds everything made reads a few sections instead of millions of rows.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import bold, code, markdown_table
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.fills import FILLED, provider_name
from penumbra.tasks.negatives.references import Negatives
from penumbra.tasks.negatives.selection import mark_changes
from penumbra.tasks.stage import Stage, logger, run, side_effect_task

FLOW = "build-negatives"
EXAMPLES = 5
LEVELS = 3
Row = dict[str, Any]


@dataclass(frozen=True)
class Rejected(Stage):
    """The refusals of several stages, one part after the other."""

    name = "rejected"
    version = 1
    unit = "refusal"
    by_workers = False  # its pieces are the rows themselves

    stages: tuple[Artifact, ...]

    @cached_property
    def pieces(self) -> Sequence[pa.Table]:
        """The refusals of each part."""
        store = Store()
        return [rows for artifact in self.stages for rows in store.rejected(artifact)]

    def part(self, piece: pa.Table) -> Part:
        """Return the refusals of a part as they are."""
        return Part(piece, len(piece), len(piece))


def gather_rejected(*stages: Artifact) -> Artifact:
    """Return the refusals of all stages as one artifact."""
    return run(Rejected(stages))


@dataclass(frozen=True)
class Summary(Stage):
    """The counted sections of the report, the outcome first; whole sentences have no masks and no fills."""

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
        """Count all sections."""
        rows = [{"section": title, "text": text} for title, text in _sections(Store(), self).items()]
        return Part(table_of(self.name, rows), len(rows), len(rows))

    def shown(self, rows: list[Row]) -> list[Row]:
        """Return nothing: the report shows the sections."""
        return []


def summarise(
    annotations: Artifact, tags: Artifact, masks: Artifact | None, fills: tuple[Artifact, ...], negatives: Artifact
) -> Artifact:
    """Count what the report of a run says."""
    return run(Summary(annotations, tags, masks, fills, negatives))


class LevelCounts:
    """Counts of the negatives, by level."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.similarity: defaultdict[int, float] = defaultdict(float)
        self.providers: Counter[tuple[int, str]] = Counter()
        self.words: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.checks: Counter[tuple[int, str]] = Counter()

    def add(self, row: Row) -> None:
        """Count a negative."""
        level = row["level"]
        self.rows[level] += 1
        self.similarity[level] += row["similarity"]
        self.providers[level, row["provider"]] += 1
        self.words[level].update(row["words"])
        self.checks.update((level, check) for check in row["checks"])

    def table(self) -> str:
        """Return negatives, mean cosine, distinct fills and the ten commonest fills' share, by level."""
        rows = []
        for level, count in sorted(self.rows.items()):
            fills = self.words[level]
            top = sum(n for _, n in fills.most_common(10)) / max(1, fills.total())
            makers = ", ".join(f"{p} {n:,}" for (at, p), n in sorted(self.providers.items()) if at == level)
            rows.append(
                (level, f"{count:,}", f"{self.similarity[level] / count:.3f}", len(fills), f"{top:.0%}", makers)
            )
        header = ("level", "negatives", "mean cosine to the query", "distinct fills", "ten commonest", "by provider")
        return markdown_table(header, rows)

    def checks_table(self) -> str:
        """Return the share of each level's negatives that pass a check."""
        levels = sorted(self.rows)
        names = sorted({name for _, name in self.checks})
        lines = [(name, *(f"{self.checks[level, name] / self.rows[level]:.1%}" for level in levels)) for name in names]
        return markdown_table(("check", *(f"level {level}" for level in levels)), lines, cell=str)


def _sections(store: Store, of: Summary) -> dict[str, str]:
    """Return the sections by title: outcome, examples, counts, and the providers or the checks that were passed."""
    counts, complete, examples = LevelCounts(), 0, list[tuple[Any, ...]]()
    for part in store.parts(of.negatives):
        for _, group in groupby(part.to_pylist(), key=itemgetter("qid")):
            rows = list(group)
            for row in rows:
                counts.add(row)
            complete += len(rows) == LEVELS
            if len(examples) < EXAMPLES * (LEVELS + 1) and (len(rows) == LEVELS or not of.masks):
                examples.append(("query", bold(rows[0]["query"])))
                examples += [(row["level"], mark_changes(row["query"], row["negative"])) for row in rows]
    manifest = store.manifest(of.negatives)
    outcome = f"**{manifest.rows:,} negatives, {manifest.taken - manifest.kept:,} rejected.**"
    if of.masks:
        taken = store.manifest(of.masks).taken
        outcome = (
            f"**{manifest.rows:,} negatives for {taken:,} training queries; {complete:,} queries "
            f"({complete / max(1, taken):.1%}) have all three levels.**"
        )
        last = {"Providers": _provider_table(store, of.fills)}
    else:
        last = {"Checks that they pass, of which none is enforced": counts.checks_table()}
    shown = {"Examples": markdown_table(("level", "sentence"), examples), "Figures by level": counts.table()}
    return {"Outcome": outcome, **shown, **last}


def _provider_table(store: Store, fills: Sequence[Artifact]) -> str:
    """Return a line for each provider: fills, share filled, refusals, tokens and money."""
    header = ("provider", "answered by", "fills", "yield", "asked again", "problems", "tokens", "USD")
    rows = []
    for artifact in fills:
        filled, again, tokens, cost = 0, 0, 0, 0.0
        models, problems, total = Counter[str](), Counter[str](), 0
        columns = ["status", "problem", "model", "attempts", "prompt_tokens", "completion_tokens", "cost_usd"]
        for part in store.parts(artifact, columns):
            for row in part.to_pylist():
                total += 1
                filled += row["status"] == FILLED
                again += row["attempts"] > 1
                tokens += row["prompt_tokens"] + row["completion_tokens"]
                cost += row["cost_usd"]
                models[row["model"]] += 1
                problems[row["problem"] if row["status"] != FILLED else ""] += 1
        del problems[""]
        rows.append(
            (
                provider_name(store, artifact),
                ", ".join(model for model, _ in models.most_common(3)),
                f"{filled:,}",
                f"{filled / max(1, total):.1%}",
                f"{again:,}",
                "; ".join(f"{reason}: {count:,}" for reason, count in problems.most_common(5)) or "–",
                f"{tokens:,}",
                f"{cost:.4f}",
            )
        )
    return markdown_table(header, rows)


def write_report(store: Store, made: Negatives, summary: Artifact) -> str:
    """Return the report in markdown: the outcome first, then what the summary counts, stages and refusals."""
    manifests = [store.manifest(artifact) for artifact in made.stages]
    outcome, *sections = store.table(summary).to_pylist()
    refused = sum((Counter(manifest.rejected) for manifest in manifests), Counter[str]())
    kind = "" if made.masks else " that are whole sentences"
    stages = [
        (m.stage, m.unit, f"{m.taken:,}", f"{m.kept:,}", f"{m.taken - m.kept:,}", f"{m.seconds:.1f}", code(m.key))
        for m in manifests
    ]
    return "\n\n".join(
        [
            f"# {made.annotations.dataset}: hard negatives{kind}",
            f"{outcome['text']} Their folder: `{made.negatives.path}`.",
            *(f"## {section['section']}\n\n{section['text']}" for section in sections),
            "## Stages",
            markdown_table(("stage", "counted in", "in", "out", "rejected", "seconds", "key"), stages),
            f"## Rejected: {store.manifest(made.rejected).rows:,}",
            markdown_table(("reason", "count"), refused.most_common()) if refused else "Nothing was rejected.",
        ]
    )


def outcome_line(store: Store, made: Negatives) -> str:
    """Return how a run ended, in one line: negatives, what was filled by `corpus` instead, and what is missing."""
    read, negatives = store.manifest(made.annotations), store.manifest(made.negatives)
    if made.masks is None:
        return _sentence_outcome(store, made)
    masked, fills = store.manifest(made.masks), [store.manifest(artifact) for artifact in made.fills]
    substituted = sum(manifest.kept for manifest in fills if "substitutes" in manifest.parameters)
    refused, unmasked = read.taken - read.kept, masked.taken - masked.kept
    missing = masked.rows - negatives.rows
    parts = [f"{negatives.rows:,} negatives for {masked.kept:,} queries"]
    parts += [f"{substituted:,} levels that no provider filled were offered corpus's words"] if substituted else []
    parts += [f"{refused:,} of {read.taken:,} rows of the files were rejected"] if refused else []
    parts += [f"{unmasked:,} queries could not be masked"] if unmasked else []
    parts += [f"{missing:,} levels have none"] if missing else []
    return "; ".join(parts if refused or unmasked or missing else [*parts, "none is missing"])


def _sentence_outcome(store: Store, made: Negatives) -> str:
    """Return the outcome for whole sentences: how many queries have any, and the commonest reason of a refusal."""
    negatives = store.manifest(made.negatives)
    queries = {qid for part in store.parts(made.negatives, ["qid"]) for qid in part["qid"].to_pylist()}
    training = sum(part["split"].to_pylist().count("train") for part in store.parts(made.annotations, ["split"]))
    line = f"{negatives.rows:,} negatives for {len(queries):,} of {training:,} training queries"
    line += f"; {negatives.taken - negatives.kept:,} rejected"
    for reason, times in Counter(negatives.rejected).most_common(1):
        line += f", {times:,} of them: {reason} (the table `rejected` has each)"
    return line


@side_effect_task("report")
def report_negatives(made: Negatives, summary: Artifact) -> str:
    """Publish the report of a run; return its outcome in one line."""
    store = Store()
    publish_report(made.annotations.dataset, FLOW, write_report(store, made, summary))
    line = outcome_line(store, made)
    logger().info(line)
    return line
