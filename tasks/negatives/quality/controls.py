"""The two controls of every comparison: random fills of the same masks, and the nearest other real query."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penumbra.tasks.negatives.choosing.guard import normal_form
from penumbra.tasks.negatives.providers.draws import row_seed, uniform
from penumbra.tasks.negatives.quality.negative import Negative
from penumbra.tasks.negatives.quality.reference import Reference
from penumbra.tasks.negatives.quality.texts import MASK

CONTROL = "control: "
RANDOM, NEAREST, ORIGINALS = f"{CONTROL}random fills", f"{CONTROL}nearest query", "originals"
EVERY_LEVEL = 0  # where a figure belongs to no single level
Vectors = Mapping[str, NDArray[np.float32]]


def put_in(masked: str, words: Sequence[str]) -> str:
    """A masked query with its masks replaced, from left to right."""
    left = iter(words)
    return re.sub(MASK, lambda _: next(left), masked)


def random_rows(rows: Iterable[Negative], reference: Reference, seed: int) -> Iterator[Negative]:
    """Yield each row filled anew: any word that the training split has under a slot's class and tag, with equal chance.

    A row whose masks are unknown, or where a slot has no other word, is left out.
    """
    for row, draws in _with_draws(rows, seed):
        slots = reference.slots(row)
        if not slots or row.masked is None or row.masked.count(MASK) != len(slots):
            continue
        words = []
        for draw, slot in zip(draws, slots, strict=False):
            offer, own = slot.choice(reference.dictionary)
            open_to = [word for place, word in enumerate(offer.words) if place not in own]
            if not open_to:
                break
            words.append(slot.surface(open_to[int(draw * len(open_to))]))
        else:
            yield replace(row, negative=put_in(row.masked, words), provider=RANDOM, slots=slots, similarity=None)


def random_words(rows: Iterable[Negative], reference: Reference, seed: int) -> Iterator[Negative]:
    """Yield each row filled with any words of the training split, whatever their class: the specification's zero."""
    words = sorted(reference.vocabulary)
    for row, draws in _with_draws(rows, seed, 1):
        if row.masked is not None and words:
            chosen = [words[int(draw * len(words))] for draw in draws[: row.masked.count(MASK)]]
            yield replace(row, negative=put_in(row.masked, chosen), provider=RANDOM, similarity=None)


def _with_draws(rows: Iterable[Negative], seed: int, *more: int) -> Iterator[tuple[Negative, list[float]]]:
    """Yield each row with a number in [0, 1) for each of its masks, and perhaps some more."""
    several = list(rows)
    most = max((row.masked.count(MASK) for row in several if row.masked), default=0)
    seeds = np.array([row_seed(seed, row.qid, row.level, *more) for row in several], dtype=np.uint64)
    return zip(several, uniform(seeds[:, None], np.arange(most)).tolist(), strict=True)


def originals(rows: Iterable[Negative]) -> Iterator[Negative]:
    """Yield every query once, as its own negative: what the best fills could come to."""
    seen: set[str] = set()
    for row in rows:
        if row.qid not in seen:
            seen.add(row.qid)
            yield Negative(row.qid, row.vid, EVERY_LEVEL, row.positive, row.positive, ORIGINALS)


def nearest_rows(
    rows: Iterable[Negative], vectors: Vectors, candidates: Iterable[Vectors], reference: Reference
) -> Iterator[Negative]:
    """Yield for every query the nearest training query that is none of its video's and says something else.

    `vectors` has the queries; `candidates` are the training queries' vectors, part by part.
    """
    wanted = list(originals(rows))
    own = np.stack([vectors[row.positive] for row in wanted]) if wanted else np.zeros((0, 0), dtype=np.float32)
    nearest: list[tuple[float, str]] = [(-np.inf, "")] * len(wanted)
    for part in candidates:
        texts = sorted(part)
        if not texts or not wanted:
            continue
        forms = [normal_form(text) for text in texts]
        cosines = own @ np.stack([part[text] for text in texts]).T
        for number in np.flatnonzero(cosines.max(axis=1) > [cosine for cosine, _ in nearest]):
            row = wanted[number]
            closed = reference.positives_of(row.vid)[0] | {normal_form(row.positive)}
            for place in np.argsort(-cosines[number], kind="stable"):
                if forms[place] not in closed:
                    found = float(cosines[number, place]), texts[place]
                    nearest[number] = found if found[0] > nearest[number][0] else nearest[number]
                    break
    for row, (cosine, text) in zip(wanted, nearest, strict=True):
        if text:
            yield replace(row, negative=text, provider=NEAREST, similarity=cosine)
