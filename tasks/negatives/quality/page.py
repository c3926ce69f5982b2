"""The quality report as a page for people: tables, and charts where people would rather look."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penumbra.artifacts.charts import Bar, bars, dots
from penumbra.artifacts.manifest import Manifest
from penumbra.artifacts.markdown import code, markdown_table, plain
from penumbra.tasks.negatives.quality.controls import EVERY_LEVEL, NEAREST, ORIGINALS, RANDOM
from penumbra.tasks.negatives.quality.counts import is_total
from penumbra.tasks.negatives.quality.figures import ALL, AS_DRAWN, COMMON_FILL

Known = dict[tuple[int, str, str], float]
MEASURES = {
    "rows": "negatives",
    "hierarchy": "hierarchy: the cosine falls from level to level",
    "template_kept": "template kept",
    "closed_vocabulary": "closed vocabulary",
    "same_slot_class": "same slot class",
    "same_slot_class.parsed": "same slot class, parsed anew",
    "equal_to_original": "fills equal to the original word",
    "paraphrases": "paraphrases (cosine > 0.90)",
    "similarity": "mean cosine to the query",
    "false_negatives": "equal another positive of the video, rows",
    "false_negatives.lemmatised": "the same, by lemmas, rows",
    "copies": "equal their own query, rows",
    "leaks": "leaks: equal a test query that the training split lacks, rows",
    "leaks.trained": "equal a test query that is a training query too, rows",
    "held_out.compositions": "with a held-out composition, rows",
    "held_out.words": "with a held-out word, rows",
    "blind_auc": "blind AUC (1- and 2-grams)",
    "blind_auc.characters": "blind AUC, character n-grams",
    "blind_auc.sentences": "blind AUC, SentenceBERT",
    "blind_auc.gru": "blind AUC, GRU",
    "plausibility": "plausibility",
    "plausibility.by_token": "plausibility, every token alike",
    "plausibility.any_words": "plausibility, 0 being words of any class",
    "log_probability": "log-probability a token",
    "attested_relations": "attested relations",
    "new_relations": "new relations a negative",
    "length": "words",
    "distinct_fills": "distinct fills",
    "distinct_fills_a_slot": "distinct fills a slot",
    "ten_commonest": "share of the ten commonest fills",
    "yield": "yield",
    "review.false_of_this_moment": "people: false of this moment",
    "review.natural_english": "people: natural English",
    "review.empty_rows": "people: rows left empty",
}
SHARES = {
    "template_kept",
    "closed_vocabulary",
    "same_slot_class",
    "same_slot_class.parsed",
    "equal_to_original",
    "paraphrases",
    "attested_relations",
    "ten_commonest",
    "yield",
    "hierarchy",
    "review.false_of_this_moment",
    "review.natural_english",
}
WHOLE = {"rows", "distinct_fills", "review.empty_rows"}
CLASSIFIERS = {
    "blind_auc": "words",
    "blind_auc.characters": "characters",
    "blind_auc.sentences": "SentenceBERT",
    "blind_auc.gru": "GRU",
}

A_COIN = 0.5
BELOW_A_COIN = (
    "A blind AUC below 0.5 is no worse and no better than 0.5: the text gives nothing away. A classifier is judged by "
    "queries of other videos than it has learned from. Where there is nothing to learn it learns chance's habits, and "
    "in few queries those point the other way: a word seen more among the negatives here is seen less there."
)


def known(rows: Iterable[Mapping[str, Any]]) -> Known:
    """The figures by level, provider and metric."""
    return {(row["level"], row["provider"], row["metric"]): row["value"] for row in rows}


def shown(metric: str, value: float) -> str:
    """A figure as people write it: shares in per cent, counts as whole numbers."""
    if metric in SHARES:
        return f"{value:.1%}"
    return f"{value:,.0f}" if metric in WHOLE or is_total(metric) else f"{value:.3f}"


def cell(figures: Known, level: int, provider: str, metric: str) -> str:
    """A figure with its interval, or a dash."""
    value = figures.get((level, provider, metric))
    if value is None:
        return "–"
    low, high = (figures.get((level, provider, f"{metric}.{end}")) for end in ("low", "high"))
    text = shown(metric, value)
    if low is None or high is None or (low, high) == (value, value):
        return text
    return f"{text} ({shown(metric, low)} to {shown(metric, high)})"


def levels_of(figures: Known) -> list[int]:
    """The levels that there are figures of."""
    return sorted({level for level, _, _ in figures} - {EVERY_LEVEL})


def providers_of(figures: Known) -> list[str]:
    """Who is judged and held against: all, each provider where there are several, then the controls."""
    providers = {provider for _, provider, metric in figures if metric in ("rows", "attested_relations")}
    controls = [name for name in (RANDOM, NEAREST, ORIGINALS) if name in providers]
    makers = sorted(name for name in providers if name not in (ALL, *controls) and not name.startswith(AS_DRAWN))
    return [ALL, *(makers if len(makers) > 1 else []), *controls]


def cells(figures: Known, provider: str) -> list[tuple[str, ...]]:
    """All figures of a provider: a header, then a row a measure with a column a level."""
    measured = {level for level, who, metric in figures if who == provider and metric in MEASURES}
    levels = sorted(measured, key=lambda level: (level == EVERY_LEVEL, level))
    rows = [
        (name, *(cell(figures, level, provider, metric) for level in levels))
        for metric, name in MEASURES.items()
        if any((level, provider, metric) in figures for level in levels)
    ]
    return [("measure", *(f"level {level}" if level else "all levels" for level in levels)), *rows]


def table(figures: Known, provider: str) -> str:
    """The same in markdown."""
    header, *rows = cells(figures, provider)
    return markdown_table(header, rows)


def summary(figures: Known) -> str:
    """The figures that matter most, the negatives beside the controls."""
    header = ("whose", "level", "blind AUC", "plausibility", "attested relations", "mean cosine", "paraphrases")
    metrics = ("blind_auc", "plausibility", "attested_relations", "similarity", "paraphrases")
    rows = []
    for provider in providers_of(figures):
        for level in (*levels_of(figures), EVERY_LEVEL):
            values = [(metric, figures.get((level, provider, metric))) for metric in metrics]
            texts = ["–" if value is None else shown(metric, value) for metric, value in values]
            if set(texts) != {"–"}:
                rows.append((provider, level or "–", *texts))
    return markdown_table(header, rows)


def fell(figures: Known) -> str:
    """One line on the hierarchy."""
    line = cell(figures, EVERY_LEVEL, ALL, "hierarchy")
    return "" if line == "–" else f"**Hierarchy:** the cosine falls from level to level for {line} of the queries."


def leaks(figures: Known) -> str:
    """Leaks by test split and what the test splits hold out: of the negatives, and of the fills as drawn."""
    metrics = sorted(
        {
            m
            for _, _, m in figures
            if m.split(".")[0] in ("leaks", "held_out") and m.count(".") < 2 and not m.endswith((".low", ".high"))
        }
    )
    makers = [ALL, *sorted({p for _, p, _ in figures if p.startswith(AS_DRAWN)})]
    rows = [
        (maker, level, *(cell(figures, level, maker, metric).split(" ")[0] for metric in metrics))
        for maker in makers
        for level in levels_of(figures)
        if (level, maker, "rows") in figures
    ]
    return markdown_table(("whose", "level", *metrics), rows) if metrics else ""


def similarity_chart(figures: Known) -> str:
    """Cosine to the query by level: median, quartiles, and from the 5th to the 95th percentile."""
    lines = []
    for colour, provider in enumerate(p for p in providers_of(figures) if p != ORIGINALS):
        for level in (*levels_of(figures), EVERY_LEVEL):
            points = [figures.get((level, provider, f"similarity.p{p:02d}")) for p in (5, 25, 50, 75, 95)]
            low, start, middle, end, high = points
            if None not in points:
                label = f"{provider}, level {level}" if level else provider
                lines.append(Bar(label, middle or 0, low, high, colour, (start or 0, end or 0)))
    return dots("cosine to the query", lines, 0, 1, 0.25).image() if lines else ""


def auc_chart(figures: Known) -> str:
    """Blind AUC by provider, classifier and level; 0.5 is a coin's."""
    lines = []
    for provider in providers_of(figures):
        for colour, (metric, name) in enumerate(CLASSIFIERS.items()):
            for level in (*levels_of(figures), EVERY_LEVEL):
                value = figures.get((level, provider, metric))
                if value is not None:
                    low, high = (figures.get((level, provider, f"{metric}.{end}")) for end in ("low", "high"))
                    label = provider.removeprefix("control: ") + (f", level {level}" if level else "")
                    lines.append(Bar(f"{label}, {name}", value, low, high, colour))
    if not lines:
        return ""
    told = [BELOW_A_COIN] if any(line.value < A_COIN for line in lines) else []
    return "\n\n".join([dots("blind AUC", lines, 0.4, 1, 0.1).image(), *told])


def fills_chart(figures: Known) -> str:
    """The commonest fills of each level."""
    lines = [
        Bar(f"level {level}: {metric.removeprefix(COMMON_FILL)}", value, colour=level - 1)
        for (level, provider, metric), value in figures.items()
        if provider == ALL and metric.startswith(COMMON_FILL)
    ]
    if not lines:
        return ""
    high = max(0.05, 1.05 * max(line.value for line in lines))
    return bars("commonest fills", lines, high, [tick / 100 for tick in range(0, int(100 * high) + 1, 5)]).image()


def refusals(figures: Known) -> str:
    """Yield and reasons of refusal, by provider."""
    rows = [
        (provider, level or "–", metric, shown(metric, value))
        for (level, provider, metric), value in sorted(figures.items(), key=lambda item: item[0][1])
        if metric == "yield" or metric.startswith("refused: ")
    ]
    return markdown_table(("whose", "level", "what", "how much"), rows) if rows else ""


def write_page(rows: Sequence[Mapping[str, Any]], manifest: Manifest, path: str) -> str:
    """The page's markdown."""
    figures = known(rows)
    sections: list[tuple[str, str]] = [
        ("", fell(figures)),
        ("", "".join(f"- {plain(note)}\n" for note in manifest.notes)),
        ("At a glance", summary(figures)),
        ("Blind AUC", auc_chart(figures)),
        ("Cosine to the query", similarity_chart(figures)),
        ("Commonest fills", fills_chart(figures)),
        ("Leaks and held-out words, rows", leaks(figures)),
        *((f"Every figure: {plain(provider)}", table(figures, provider)) for provider in providers_of(figures)),
        ("Yield and refusals", refusals(figures)),
    ]
    head = f"# {manifest.dataset}: how good the negatives are"
    where = f"Intervals are 95 % bootstrap intervals by video. All figures: {code(path)}"
    shown_sections = [(f"## {title}\n\n" if title else "") + text for title, text in sections if text]
    return "\n\n".join([head, where, *shown_sections])
