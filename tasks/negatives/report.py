"""The report of a run of `build-negatives`, and the stage `rejected`: a table of all rows that its stages rejected."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from penumbra.artifacts.display import mark_changes
from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.markdown import bold, code, counted, markdown_table, plain
from penumbra.artifacts.prefect_ui import has_pages, publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.parameters import Negatives
from penumbra.tasks.progress import logger
from penumbra.tasks.stage import Stage, side_effect_task
from penumbra.tasks.text.masks import NOUNS_FIRST, VERBS_FIRST

EXAMPLES = 5
LEVELS = 3
QUOTED = re.compile(r"'[^']*'")  # a word in a reason


@dataclass(frozen=True)
class Rejected(Stage):
    """The rejections of several stages, one part after the other."""

    name = "rejected"
    version = 1
    unit = "refusal"
    by_workers = False  # its pieces are the rows themselves

    stages: tuple[Artifact, ...]

    @cached_property
    def pieces(self) -> Sequence[pa.Table]:
        store = Store()
        return [rows for artifact in self.stages for rows in store.rejected(artifact)]

    def part(self, piece: pa.Table) -> Part:
        return Part(piece, len(piece), len(piece))


@side_effect_task("report")
def report_negatives(made: Negatives) -> str:
    """Publish the report of a run if the server has pages; return the outcome of the run in one line."""
    store = Store()
    line = outcome_line(store, made)
    if has_pages():
        publish_report(made.annotations.dataset, "build-negatives", write_report(store, made, line))
    logger().info(line)
    if advice := advice_for_few(store, made):
        logger().warning(advice)
    return line


def advice_for_few(store: Store, made: Negatives) -> str:
    """Return parameters that may fill more levels if `llama` alone left most queries without a negative, else ''."""
    if not made.masks or [store.manifest(fills).parameters["provider"] for fills in made.fills] != ["llama"]:
        return ""
    masked, filled = store.manifest(made.masks), _queries_with_negatives(store, made)
    if 2 * filled >= masked.kept:
        return ""
    masks_nouns = (masked.parameters["primitives"] or VERBS_FIRST)[0] == "noun"
    order = ",".join(VERBS_FIRST if masks_nouns else NOUNS_FIRST)
    return (
        f"{masked.kept - filled:,} of {counted(masked.kept, 'query')} have no negative. These may fill more levels: "
        f"--param 'masking.primitives=[{order}]', another order of masking, or --param "
        "'providers=[llama,corpus]', whose words are less natural"
    )


def outcome_line(store: Store, made: Negatives, rejected: str = "the table `rejected`") -> str:
    """Return the outcome of a run in one line: its negatives, and what was substituted or is listed in `rejected`."""
    read, negatives = store.manifest(made.annotations), store.manifest(made.negatives)
    filled, judging = _queries_with_negatives(store, made), made.negatives.stage != "negatives"
    splits = Counter(row["split"] for row in store.rows(made.annotations, ["split"]))
    training = splits["train"]
    of = counted(splits.total() - training, "other query") if judging else counted(training, "training query")
    fills = map(store.manifest, made.fills)
    substituted = sum(fill.kept for fill in fills if "substitutes" in fill.parameters)
    refused = read.taken - read.kept
    reasons = Counter[str]()  # without the words that they quote
    for artifact in filter(None, (made.masks, *made.fills, made.negatives)):
        for reason, times in store.manifest(artifact).rejected.items():
            reasons[QUOTED.sub("…", reason)] += times
    parts = [f"{counted(negatives.rows, 'judging ' * judging + 'negative')} for {filled:,} of {of}"]
    parts += [f"{counted(substituted, 'level')} that no other provider filled: filled by corpus"] if substituted else []
    parts += [f"{refused:,} of {counted(read.taken, 'row')} rejected"] if refused else []
    for reason, times in reasons.most_common(1):
        what = counted(reasons.total(), "level" if made.masks else "row")
        parts.append(f"{what} rejected, {times:,} of them: {reason}")
    if refused or reasons:
        parts.append(f"{rejected} lists all")
    if made.quality:
        from penumbra.tasks.negatives.quality.page import figures_by_name, verdict_line  # only here: it imports scipy

        parts.append(verdict_line(figures_by_name(store.rows(made.quality))))
    return "; ".join(filter(None, parts))


def _queries_with_negatives(store: Store, made: Negatives) -> int:
    return len({row["qid"] for row in store.rows(made.negatives, ["qid"])})


def write_report(store: Store, made: Negatives, outcome: str) -> str:
    """Return the report in markdown: outcome, examples, figures by level, stages and rejections."""
    manifests = [store.manifest(artifact) for artifact in made.stages]
    stages = []
    for m in manifests:
        counts = (f"{m.taken:,}", f"{m.kept:,}", f"{m.taken - m.kept:,}", f"{m.seconds:.1f}")
        cost = f"{m.cost_usd:.4f}" if m.cost_usd else "–"
        stages.append((m.stage, m.parameters.get("provider", m.unit), *counts, cost, code(m.key)))
    complete, examples, levels = _count_negatives(store, made)
    notes = Counter(store.manifest(made.negatives).notes).most_common()
    refused = sum((Counter(manifest.rejected) for manifest in manifests), Counter[str]()).most_common()
    return "\n\n".join(
        [
            f"# {made.annotations.dataset}: hard negatives{'' if made.masks else ' that are whole sentences'}",
            f"{plain(outcome)}; {counted(complete, 'query')} with all three levels. "
            f"Their folder: `{made.negatives.path}`.",
            "## Examples",
            markdown_table(("level", "sentence"), examples),
            "## Figures by level",
            levels,
            "## Stages",
            markdown_table(("stage", "unit", "in", "out", "rejected", "seconds", "USD", "key"), stages),
            *(["## Candidates refused", markdown_table(("reason", "count"), notes)] if notes else []),
            f"## Rejected: {store.manifest(made.rejected).rows:,}",
            markdown_table(("reason", "count"), refused) if refused else "Nothing was rejected.",
        ]
    )


def _count_negatives(store: Store, made: Negatives) -> tuple[int, list[tuple[Any, ...]], str]:
    """Return the number of queries with all levels, examples, and a table of the figures by level.

    For whole sentences, which no check refuses, the table has the share that passes each check.
    """
    complete, examples, counts = 0, list[tuple[Any, ...]](), Counter[tuple[int, str]]()
    rows, cosines = Counter[int](), defaultdict[int, float](float)
    for part in store.parts(made.negatives):
        by_query: dict[str, list[dict[str, Any]]] = {}
        for row in part.to_pylist():
            by_query.setdefault(row["qid"], []).append(row)
            rows[row["level"]] += 1
            cosines[row["level"]] += row["similarity"] or 0.0  # unknown for sentences of a file without an encoder
            passed = [] if made.masks else [f"pass: {check}" for check in row["checks"]]
            counts.update((row["level"], name) for name in (f"by {row['provider']}", *passed))
        for of_query in by_query.values():
            complete += len(of_query) == LEVELS
            if len(examples) < EXAMPLES * (LEVELS + 1) and (len(of_query) == LEVELS or not made.masks):
                examples.append(("query", bold(of_query[0]["query"])))
                examples += [(row["level"], mark_changes(row["query"], row["negative"])) for row in of_query]
    levels = sorted(rows)
    lines: list[tuple[str, ...]] = [("negatives", *(f"{rows[level]:,}" for level in levels))]
    lines.append(("mean cosine to the query", *(f"{cosines[level] / rows[level]:.3f}" for level in levels)))
    for name in sorted({name for _, name in counts}):
        lines.append((name, *(f"{counts[level, name] / rows[level]:.1%}" for level in levels)))
    return complete, examples, markdown_table(("figure", *(f"level {level}" for level in levels)), lines)
