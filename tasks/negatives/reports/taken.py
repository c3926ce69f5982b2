"""The report of negatives that are whole sentences: examples, figures and passed checks by level, what was refused."""

from collections import Counter
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from penumbra.artifacts.interface import publish_report
from penumbra.artifacts.markdown import bold, markdown_table
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.references import Negatives
from penumbra.tasks.negatives.reports.run import EXAMPLES, FLOW, LevelFigures, stage_table
from penumbra.tasks.stage import logger, step


def write_report(store: Store, made: Negatives) -> str:
    """The report's markdown."""
    figures, checks, rows = LevelFigures(), Counter[tuple[int, str]](), list[dict[str, Any]]()
    for part in store.parts(made.negatives):
        several = part.to_pylist()
        figures.add(several)
        checks.update((row["level"], check) for row in several for check in row["checks"])
        rows += several if not rows else []
    stages = [made.annotations, made.tags, made.dictionary, made.negatives, made.in_video_negatives, made.rejected,
              *([made.quality] if made.quality else [])]  # fmt: skip
    manifests = [store.manifest(artifact) for artifact in stages]
    refused = sorted(store.manifest(made.negatives).rejected.items(), key=lambda pair: -pair[1])
    return "\n\n".join([
        f"# {made.annotations.dataset}: hard negatives that are whole sentences",
        f"**{outcome(store, made)}.** They lie in `{made.negatives.path}`.",
        "## Examples",
        markdown_table(("level", "query"), _examples(rows)),
        "## Figures by level",
        figures.table(),
        "## Checks that they pass, of which none is enforced",
        _checks_table(figures, checks),
        "## Stages",
        stage_table(manifests),
        "## Rejected",
        markdown_table(("reason", "count"), refused) if refused else "Nothing was rejected.",
    ])  # fmt: skip


def _examples(rows: list[dict[str, Any]]) -> list[tuple[Any, str]]:
    """The lines of the first queries: each query, and its negatives."""
    lines: list[tuple[Any, str]] = []
    for _, several in islice(groupby(rows, key=itemgetter("qid")), EXAMPLES):
        negatives = list(several)
        lines.append(("positive", bold(negatives[0]["positive"])))
        lines += [(row["level"], row["query"]) for row in negatives]
    return lines


def _checks_table(figures: LevelFigures, checks: Counter[tuple[int, str]]) -> str:
    """The share of each level's negatives that pass a check."""
    levels = sorted(figures.rows)
    names = sorted({name for _, name in checks})
    lines = [(name, *(f"{checks[level, name] / figures.rows[level]:.1%}" for level in levels)) for name in names]
    return markdown_table(("check", *(f"level {level}" for level in levels)), lines, cell=str)


def outcome(store: Store, made: Negatives) -> str:
    """How a run ended, in one line."""
    manifest = store.manifest(made.negatives)
    refused = sum(manifest.rejected.values())
    return f"{manifest.rows:,} negatives, {refused:,} rejected"


@step("report")
def report_taken(made: Negatives) -> str:
    """Publish the report of a run; returns its outcome in one line."""
    store = Store()
    publish_report(made.annotations.dataset, FLOW, write_report(store, made))
    line = outcome(store, made)
    logger().info(line)
    return line
