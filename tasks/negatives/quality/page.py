"""The quality report as a page for people: a table for each provider and control."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import code, markdown_table, plain
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.quality.figures import ALL, CONTROL, EVERY_LEVEL, NATURALNESS, QUERIES, WIDEST, Verdict

FiguresByName = dict[tuple[int, str, str], float]  # by level, provider and metric
Table = tuple[Sequence[str], list[tuple[str, ...]]]  # a header, and rows
VERDICT, LEAKS = "verdict", "leaks."  # the latter before the name of a split
MEASURES = yaml.safe_load(Path(__file__).with_name("measures.yaml").read_text("utf-8"))  # number format and title
SCALED = (NATURALNESS, "plausibility", "plausibility.examples")  # 0 for random fills, 1 for the queries
WORDS = {
    Verdict.TOO_FEW: "too few sentences to say",
    Verdict.RANDOM: "near random",
    Verdict.LESS: "less natural than the queries",
    Verdict.NATURAL: "as natural as the queries",
    Verdict.READ: "not judged, as the judge is the model that chose the words: read some of them",
}


def figures_by_name(rows: Iterable[Mapping[str, Any]]) -> FiguresByName:
    return {(row["level"], row["provider"], row["metric"]): row["value"] for row in rows}


def newest_verdict(store: Store, negatives: Artifact) -> str:
    """Return the verdict of the newest quality report on these negatives in one line; '' without any."""
    for manifest in reversed(store.find(negatives.dataset, "quality")):
        if any((parent.stage, parent.key) == (negatives.stage, negatives.key) for parent in manifest.parents):
            return verdict_line(figures_by_name(store.rows(store.reference(manifest))))
    return ""


def verdict_line(figures: FiguresByName) -> str:
    """Return the verdicts on all providers' negatives in one line, levels of one verdict together; '' without any."""
    levels = defaultdict[str, list[str]](list)
    for level, name, metric in sorted(figures):
        if (name, metric) == (ALL, VERDICT):
            levels[cell(figures, level, ALL, VERDICT)].append(str(level))
    lines = []
    for words, (*first, last) in levels.items():
        lines.append(f"levels {', '.join(first)} and {last}: {words}" if first else f"level {last}: {words}")
    return "; ".join(lines)


def cell(figures: FiguresByName, level: int, provider: str, metric: str) -> str:
    """Return a figure with its interval; a dash if it is unknown, or if its interval is wider than the scale."""
    value, low, high = (figures.get((level, provider, f"{metric}{end}")) for end in ("", ".low", ".high"))
    form = MEASURES[metric][0] if metric in MEASURES else ",.0f"
    if value is None:
        return "–"
    if metric == VERDICT:
        return WORDS[Verdict(round(value))]
    if low is None or high is None or (low, high) == (value, value):
        return f"{value:{form}}"
    if metric in SCALED and high - low > WIDEST:
        return "– (too few sentences)"
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def provider_table(figures: FiguresByName, provider: str) -> Table:
    """Return all figures of a provider: a row for each measure, a column for each level."""
    known = {metric for _, name, metric in figures if name == provider and not metric.endswith((".low", ".high"))}
    splits = sorted(metric for metric in known - MEASURES.keys() if metric.startswith(LEAKS))
    titles = {metric: title for metric, (_, title) in MEASURES.items() if metric in known}
    titles |= {metric: f"leaks of the split {metric.removeprefix(LEAKS)}, rows" for metric in splits}
    levels = {level for level, name, metric in figures if name == provider and metric in titles}
    columns = sorted(levels, key=lambda it: (it == EVERY_LEVEL, it))
    rows = [(title, *(cell(figures, it, provider, metric) for it in columns)) for metric, title in titles.items()]
    return ("measure", *(f"level {level}" if level else "all levels" for level in columns)), rows


def figure_tables(figures: FiguresByName) -> list[tuple[str, Table]]:
    """Return a table of the verdicts, for `all`, for each provider if there are several, and for the controls."""
    providers = {provider for _, provider, _ in figures}
    controls = sorted(provider for provider in providers if provider.startswith(CONTROL) or provider == QUERIES)
    makers = sorted(providers - {ALL, *controls})
    chosen = [ALL, *(makers if len(makers) > 1 else [])]
    tables = [(provider, provider_table(figures, provider)) for provider in (*chosen, *controls)]
    levels = sorted({level for level, _, metric in figures if metric == VERDICT})
    if not levels:
        return tables
    verdicts = [(name, *(cell(figures, level, name, VERDICT) for level in levels)) for name in chosen]
    return [(VERDICT, (("negatives", *(f"level {level}" for level in levels)), verdicts)), *tables]


def write_page(store: Store, quality: Artifact) -> str:
    """Return a report in markdown: the verdicts, all tables, and the notes."""
    manifest, figures = store.manifest(quality), figures_by_name(store.rows(quality))
    tables = [f"## {plain(name)}\n\n{markdown_table(*table)}" for name, table in figure_tables(figures)]
    notes = "".join(f"- {plain(note)}\n" for note in manifest.notes)
    head = f"# {manifest.dataset}: quality of the negatives"
    where = f"Intervals are 95 % bootstrap intervals by video. All figures: {code(quality.path)}"
    return "\n\n".join(filter(None, [head, *tables, notes, where]))
