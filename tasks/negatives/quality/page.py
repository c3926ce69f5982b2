"""The quality report as a page for people: a table for each provider and control."""

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
COUNT = ",.0f"
MEASURES = yaml.safe_load(Path(__file__).with_name("measures.yaml").read_text("utf-8"))  # form and title of each
LEAKS = "leaks."  # before the name of a split
SCALED = (NATURALNESS, "plausibility", "plausibility.examples")  # 0 as random fills, 1 as the queries
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
    """Return the verdicts on all providers' negatives in one line, equal ones together; '' without any."""
    by_words: dict[str, list[str]] = {}
    for (level, name, metric), value in sorted(figures.items()):
        if (name, metric) == (ALL, "verdict"):
            by_words.setdefault(WORDS[Verdict(round(value))], []).append(str(level))
    lines = []
    for words, levels in by_words.items():
        *first, last = levels
        lines.append(f"levels {', '.join(first)} and {last}: {words}" if first else f"level {last}: {words}")
    return "; ".join(lines)


def cell(figures: FiguresByName, level: int, provider: str, metric: str, form: str) -> str:
    """Return a figure with its interval in a form; a dash if it is unknown, or its interval wider than the scale."""
    value, low, high = (figures.get((level, provider, f"{metric}{end}")) for end in ("", ".low", ".high"))
    if value is None:
        return "–"
    if metric in SCALED and low is not None and high is not None and high - low > WIDEST:
        return "– (too few sentences)"
    has_interval = low is not None and high is not None and (low, high) != (value, value)
    return f"{value:{form}} ({low:{form}} to {high:{form}})" if has_interval else f"{value:{form}}"


def provider_table(figures: FiguresByName, provider: str) -> Table:
    """Return all figures of a provider: a row for each measure, a column for each level."""
    names = {(level, metric) for level, name, metric in figures if name == provider}
    others = {m for _, m in names if m.startswith(LEAKS) and not m.endswith((".low", ".high"))} - MEASURES.keys()
    of_splits = {m: (COUNT, f"leaks of the split {m.removeprefix(LEAKS)}, rows") for m in sorted(others)}
    measures = MEASURES | of_splits
    levels = sorted({level for level, metric in names if metric in measures}, key=lambda it: (it == EVERY_LEVEL, it))
    rows = [
        (title, *(cell(figures, level, provider, metric, form) for level in levels))
        for metric, (form, title) in measures.items()
        if any((level, metric) in names for level in levels)
    ]
    return ("measure", *(f"level {level}" if level else "all levels" for level in levels)), rows


def figure_tables(figures: FiguresByName) -> list[tuple[str, Table]]:
    """Return a table of the verdicts, for `all`, for each provider if there are several, and for the controls."""
    providers = {provider for _, provider, _ in figures}
    controls = sorted(provider for provider in providers if provider.startswith(CONTROL) or provider == QUERIES)
    makers = sorted(providers - {ALL, *controls})
    chosen = [ALL, *(makers if len(makers) > 1 else [])]
    tables = [(provider, provider_table(figures, provider)) for provider in (*chosen, *controls)]
    levels = sorted({level for level, _, metric in figures if metric == "verdict"})
    verdicts = []
    for name in chosen:
        found = (figures.get((level, name, "verdict")) for level in levels)
        verdicts.append((name, *("–" if it is None else WORDS[Verdict(round(it))] for it in found)))
    header = ("negatives", *(f"level {level}" for level in levels))
    return [("verdict", (header, verdicts)), *tables] if levels else tables


def write_page(store: Store, quality: Artifact) -> str:
    """Return a report in markdown: the verdicts, all tables, and the notes."""
    manifest, figures = store.manifest(quality), figures_by_name(store.rows(quality))
    tables = [f"## {plain(name)}\n\n{markdown_table(*table)}" for name, table in figure_tables(figures)]
    notes = "".join(f"- {plain(note)}\n" for note in manifest.notes)
    head = f"# {manifest.dataset}: how good the negatives are"
    where = f"Intervals are 95 % bootstrap intervals by video. All figures: {code(quality.path)}"
    return "\n\n".join(filter(None, [head, *tables, notes, where]))
