"""The quality report as a page for people: a table for each provider and control, and two charts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penumbra.artifacts.charts import Bar, dots
from penumbra.artifacts.manifest import Manifest
from penumbra.artifacts.markdown import code, markdown_table, plain
from penumbra.tasks.negatives.quality.figures import ALL, AS_DRAWN, CONTROL, EVERY_LEVEL, QUERIES, is_total

FiguresByName = dict[tuple[int, str, str], float]  # by level, provider and metric
Table = tuple[Sequence[str], list[tuple[str, ...]]]  # a header, and rows
MEASURES = {
    "rows": "negatives",
    "hierarchy": "hierarchy: the cosine falls from level to level",
    "template_kept": "template kept",
    "closed_vocabulary": "closed vocabulary",
    "same_slot_class": "same slot class",
    "equal_to_original": "fills equal to the original word",
    "paraphrases": "paraphrases (cosine > 0.90)",
    "similarity": "mean cosine to the query",
    "false_negatives": "equal another query of the video, rows",
    "false_negatives.lemmatised": "the same, by lemmas, rows",
    "copies": "equal their own query, rows",
    "leaks": "leaks: equal a test query that the training split lacks, rows",
    "leaks.trained": "equal a test query that is a training query, too, rows",
    "held_out.compositions": "with a held-out composition, rows",
    "held_out.words": "with a held-out word, rows",
    "blind_auc": "blind AUC (1- and 2-grams)",
    "blind_auc.characters": "blind AUC, character n-grams",
    "plausibility": "plausibility",
    "log_probability": "log-probability of a token",
    "attested_relations": "attested relations",
    "new_relations": "new relations in a negative",
    "length": "words",
    "distinct_fills": "distinct fills",
    "distinct_fills_a_slot": "distinct fills for each slot",
    "ten_commonest": "share of the ten commonest fills",
    "yield": "yield",
}
SHARES: tuple[str, ...] = ("hierarchy", "template_kept", "closed_vocabulary", "same_slot_class", "equal_to_original")
SHARES += ("paraphrases", "attested_relations", "ten_commonest", "yield")
SUMMARY = ("blind_auc", "plausibility", "attested_relations", "similarity", "paraphrases")


def figures_by_name(rows: Iterable[Mapping[str, Any]]) -> FiguresByName:
    """Return the figures by level, provider and metric."""
    return {(row["level"], row["provider"], row["metric"]): row["value"] for row in rows}


def cell(figures: FiguresByName, level: int, provider: str, metric: str) -> str:
    """Return a figure with its interval, a share in per cent and a count as a whole number; a dash if there is none."""
    value, low, high = (figures.get((level, provider, f"{metric}{end}")) for end in ("", ".low", ".high"))
    is_count = metric in ("rows", "distinct_fills") or metric.startswith("refused: ") or is_total(metric)
    form = ".1%" if metric in SHARES else ",.0f" if is_count else ".3f"
    if value is None:
        return "–"
    has_interval = low is not None and high is not None and (low, high) != (value, value)
    return f"{value:{form}} ({low:{form}} to {high:{form}})" if has_interval else f"{value:{form}}"


def providers_of(figures: FiguresByName) -> list[str]:
    """Return `all`, each provider if there are several, the controls, and the fills as they were drawn."""
    providers = {provider for _, provider, metric in figures if metric in ("rows", "attested_relations")}
    drawn = sorted(provider for provider in providers if provider.startswith(AS_DRAWN))
    controls = sorted((provider for provider in providers if provider.startswith(CONTROL)), reverse=True)
    controls += [QUERIES] if QUERIES in providers else []
    makers = sorted(providers - {ALL, *controls, *drawn})
    return [ALL, *(makers if len(makers) > 1 else []), *controls, *drawn]


def provider_table(figures: FiguresByName, provider: str) -> Table:
    """Return all figures of a provider: a row for each measure, a column for each level."""
    names = {(level, metric) for level, name, metric in figures if name == provider}
    others = sorted(
        {m for _, m in names if m.startswith(("refused: ", "leaks.")) and not m.endswith((".low", ".high"))}
    )
    measures = MEASURES | {metric: metric for metric in others if metric not in MEASURES}
    levels = sorted({level for level, metric in names if metric in measures}, key=lambda it: (it == EVERY_LEVEL, it))
    rows = [
        (title, *(cell(figures, level, provider, metric) for level in levels))
        for metric, title in measures.items()
        if any((level, metric) in names for level in levels)
    ]
    return ("measure", *(f"level {level}" if level else "all levels" for level in levels)), rows


def figure_tables(figures: FiguresByName) -> list[tuple[str, Table]]:
    """Return the figures that matter most, without intervals, and a table for each provider, with their titles."""
    rows = []
    for provider in providers_of(figures):
        for level in _levels(figures):
            texts = [cell(figures, level, provider, metric).split(" (")[0] for metric in SUMMARY]
            if set(texts) != {"–"}:
                rows.append((provider, str(level or "–"), *texts))
    header = ("whose", "level", *(MEASURES[metric] for metric in SUMMARY))
    tables = [(provider, provider_table(figures, provider)) for provider in providers_of(figures)]
    return [("At a glance", (header, rows)), *tables]


def _levels(figures: FiguresByName) -> list[int]:
    """Return the levels that there are, and the level of figures of no single one."""
    return [*sorted({level for level, _, _ in figures} - {EVERY_LEVEL}), EVERY_LEVEL]


def _similarity_chart(figures: FiguresByName) -> str:
    """Return a chart of the cosine by level: median, quartiles, and from the 5th to the 95th percentile."""
    bars = []
    for colour, provider in enumerate(providers_of(figures)):
        for level in _levels(figures):
            points = [figures.get((level, provider, f"similarity.p{percent:02d}")) for percent in (5, 25, 50, 75, 95)]
            low, start, middle, end, high = points
            if None not in points:
                label = f"{provider}, level {level}" if level else provider
                bars.append(Bar(label, middle or 0, low, high, colour, (start or 0, end or 0)))
    return dots("cosine to the query", bars, 0, 1, 0.25).image() if bars else ""


def write_page(rows: Sequence[Mapping[str, Any]], manifest: Manifest, path: str) -> str:
    """Return the page in markdown."""
    figures = figures_by_name(rows)
    summary, *tables = figure_tables(figures)
    sections = [
        ("", "".join(f"- {plain(note)}\n" for note in manifest.notes)),
        (summary[0], markdown_table(*summary[1])),
        ("Cosine to the query", _similarity_chart(figures)),
        *((f"Every figure: {plain(provider)}", markdown_table(*table)) for provider, table in tables),
    ]
    head = f"# {manifest.dataset}: how good the negatives are"
    where = f"Intervals are 95 % bootstrap intervals by video. All figures: {code(path)}"
    texts = [(f"## {title}\n\n" if title else "") + text for title, text in sections if text]
    return "\n\n".join([head, where, *texts])
