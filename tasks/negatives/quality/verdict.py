"""The verdict of the quality report, in words: how natural the negatives of a level are.

A judge is a language model of text: the `naturalness` of a level is 0 where its sentences are as likely as random fills
of the same masks, and 1 where they are as likely as the queries. The verdict is where the 95 % interval lies
(docs/guides/quality.md). If the judge has also chosen the words, a second judge decides with it: the worse one counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from penumbra.tasks.data.resampling import Estimate

SENTENCES, VIDEOS = 50, 10  # fewer say nothing
HALF, WIDEST = 0.5, 1.0


class Verdict(IntEnum):
    """The verdicts as the table `quality` has them; a higher one is better."""

    TOO_FEW = 0
    RANDOM = 1
    LESS = 2
    NATURAL = 3


WORDS = {
    Verdict.TOO_FEW: "too few sentences to say",
    Verdict.RANDOM: "near random",
    Verdict.LESS: "less natural than the queries",
    Verdict.NATURAL: "as natural as the queries",
}


def verdict_of(naturalness: Estimate, sentences: int, videos: int) -> Verdict:
    """Return the verdict on a level from the interval of its naturalness."""
    low, high = naturalness.low, naturalness.high
    if sentences < SENTENCES or videos < VIDEOS or not high - low <= WIDEST:  # also without an interval
        return Verdict.TOO_FEW
    if high < HALF:
        return Verdict.RANDOM
    if low > 0 and high < 1:
        return Verdict.LESS
    return Verdict.NATURAL if low >= HALF else Verdict.TOO_FEW


def decide(votes: Mapping[str, Verdict], first: str, is_own: bool) -> Verdict | None:
    """Return the verdict of several judges by name; None without any.

    The judge `first` decides alone, unless it has chosen the words itself (`is_own`): then its praise counts for
    nothing, and the worse verdict counts.
    """
    if first in votes and not is_own:
        return votes[first]
    bad = [vote for vote in votes.values() if vote in (Verdict.RANDOM, Verdict.LESS)]
    others = [vote for name, vote in votes.items() if name != first]
    return min(bad or others, default=Verdict.TOO_FEW if votes else None)


def verdict_table(
    figures: Mapping[tuple[int, str, str], float], providers: Sequence[str]
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return a table of the verdicts, a row for each provider and a column for each level; no row without any."""
    levels = sorted({level for level, _, metric in figures if metric == "verdict"})
    header = ("negatives", *(f"level {level}" for level in levels))
    rows = [(name, *(_words(figures.get((level, name, "verdict"))) for level in levels)) for name in providers]
    return header, rows if levels else []


def verdict_line(figures: Mapping[tuple[int, str, str], float], provider: str) -> str:
    """Return the verdicts of all levels in one line, equal ones together; '' without any."""
    levels = {
        level: value for (level, name, metric), value in figures.items() if (name, metric) == (provider, "verdict")
    }
    by_words: dict[str, list[int]] = {}
    for level, value in sorted(levels.items()):
        by_words.setdefault(_words(value), []).append(level)
    return "; ".join(f"{_levels(several)}: {words}" for words, several in by_words.items())


def _levels(levels: Iterable[int]) -> str:
    several = [*map(str, levels)]
    return f"level {several[0]}" if len(several) == 1 else f"levels {', '.join(several[:-1])} and {several[-1]}"


def _words(value: float | None) -> str:
    return "–" if value is None else WORDS[Verdict(round(value))]
