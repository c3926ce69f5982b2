"""The providers side by side: what each gave, what it cost, and how their fills of the same queries compare."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import markdown_table
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.fills import FAILED, FILLED, provider_name, training_sentences
from penumbra.tasks.negatives.providers.language_model import KneserNey

COMPARED = 2_000  # queries and levels that the comparison looks at
NOTHING_SHARED = "There is nothing to compare: no two providers filled the same queries."
Place = tuple[str, int]


@dataclass
class Yield:
    """What one provider's fills come to."""

    rows: int = 0
    filled: int = 0
    asked_again: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    levels: Counter[str] = field(default_factory=Counter)  # of each query that have a fill
    problems: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)

    def add(self, part: pa.Table) -> None:
        """Count a part's rows."""
        done = part.filter(pc.equal(part["status"], FILLED))
        failed = part.filter(pc.equal(part["status"], FAILED))
        self.rows += len(part)
        self.filled += len(done)
        self.asked_again += pc.sum(pc.greater(part["attempts"], 1)).as_py() or 0
        self.tokens += sum(pc.sum(part[name]).as_py() or 0 for name in ("prompt_tokens", "completion_tokens"))
        self.cost_usd += pc.sum(part["cost_usd"]).as_py() or 0.0
        self.levels.update(qid for qid, _ in set(zip(done["qid"].to_pylist(), done["level"].to_pylist(), strict=True)))
        self.problems.update(failed["problem"].to_pylist())
        self.models.update(part["model"].to_pylist())

    def row(self) -> tuple[str, ...]:
        """The cells of its line."""
        most = max(self.levels.values(), default=0)
        complete = sum(count == most for count in self.levels.values())
        each = max(1, complete)
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in self.problems.most_common(5))
        return (
            ", ".join(model for model, _ in self.models.most_common(3)),
            f"{self.filled:,}",
            f"{self.filled / max(1, self.rows):.1%}",
            f"{self.asked_again:,}",
            reasons or "–",
            f"{self.tokens:,}",
            f"{self.tokens / each:,.0f}",
            f"{self.cost_usd:.4f}",
            f"{1000 * self.cost_usd / each:.3f}",
        )


def yield_table(store: Store, fills: Sequence[Artifact]) -> str:
    """A line for each provider: fills, yield, refusals, tokens and money."""
    columns = [
        "qid",
        "level",
        "status",
        "problem",
        "model",
        "attempts",
        "prompt_tokens",
        "completion_tokens",
        "cost_usd",
    ]
    header = (
        "provider",
        "answered by",
        "fills",
        "yield",
        "asked again",
        "problems",
        "tokens",
        "tokens a query",
        "USD",
        "USD a 1,000 queries",
    )
    rows = []
    for artifact in fills:
        counted = Yield()
        for part in store.parts(artifact, columns):
            counted.add(part)
        rows.append((provider_name(store, artifact), *counted.row()))
    return markdown_table(header, rows)


def comparison(store: Store, annotations: Artifact, tags: Artifact, fills: Sequence[Artifact]) -> str:
    """The first fills of the same queries and levels: how usual the sentences are, how varied, how often equal."""
    if len(fills) < 2:
        return NOTHING_SHARED
    names = [provider_name(store, artifact) for artifact in fills]
    firsts = [dict(_first_fills(store, artifact)) for artifact in fills]
    shared = sorted(set.intersection(*(set(first) for first in firsts)))
    if not shared:
        return NOTHING_SHARED
    sides = zip(store.parts(annotations, ["split"]), store.parts(tags, ["tokens"]), strict=True)
    language = KneserNey.of(training_sentences(sides))
    header = (
        "provider",
        "mean log-probability a word",
        "distinct words",
        "ten commonest",
        *(f"same as {n}" for n in names),
    )
    rows = []
    for name, first in zip(names, firsts, strict=True):
        words = Counter(word for place in shared for word in first[place][0])
        texts = [first[place][1].lower().split() for place in shared]
        same = (sum(first[place][0] == other[place][0] for place in shared) / len(shared) for other in firsts)
        top = sum(count for _, count in words.most_common(10)) / words.total()
        likely = language.log_probability(texts).mean()
        rows.append((name, f"{likely:.3f}", f"{len(words):,}", f"{top:.0%}", *(f"{share:.0%}" for share in same)))
    return f"Over {len(shared):,} queries and levels that all of them filled.\n\n{markdown_table(header, rows)}"


def _first_fills(store: Store, artifact: Artifact) -> Iterator[tuple[Place, tuple[tuple[str, ...], str]]]:
    """The first fill of each of the first queries and levels: its words and its text."""
    seen: set[Place] = set()
    for part in store.parts(artifact, ["qid", "level", "status", "words", "negative"]):
        done = part.filter(pc.equal(part["status"], FILLED))
        for row in done.to_pylist():
            place = (row["qid"], row["level"])
            if place in seen:
                continue
            if len(seen) == COMPARED:
                return
            seen.add(place)
            yield place, (tuple(row["words"]), row["negative"])
