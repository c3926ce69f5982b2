"""Stage `reviews`: people's verdicts on negatives, which are kept for good.

The page of `penumbra browse` saves a file: JSON lines, the first of which names data set, stage, key of the negatives
and the reviewer. `penumbra review` stores each file as an artifact whose key is a digest of its content, so that the
same file counts once. All negatives that are made later take the verdicts of all reviews of their data set.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from penumbra.artifacts.catalogue import MANIFEST
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.checks import normal_form

STAGE = "reviews"
ACCEPT, REJECT, EDIT = VERDICTS = ("accept", "reject", "edit")
FILLS = "fills"  # the source of negatives that are no whole sentences
REVIEWER = "reviewer"  # the provider of an edited sentence
REJECTED = "a reviewer rejected it"
Row = dict[str, Any]


def reviews_of(dataset: str) -> tuple[Artifact, ...]:
    """Return all reviews of a data set, by key; raise `ArtifactError` if one is damaged."""
    store = Store()
    found = tuple(store.folders(dataset, STAGE, MANIFEST))
    for artifact in found:
        store.manifest(artifact)
    return found


class Disagreement(NamedTuple):
    """A sentence of a query, and each reviewer's verdict on it."""

    qid: str
    negative: str
    verdicts: dict[str, str]


class Verdicts:
    """What reviewers decided about the sentences of each query.

    The last verdict of each reviewer on a sentence counts. Of the verdicts of several reviewers a rejection wins, then
    the last edit.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        by_sentence = defaultdict[tuple[str, str, str], dict[str, Row]](dict)
        for row in sorted(rows, key=lambda row: row["time"]):
            sentence = row["qid"], normal_form(row["query"]), normal_form(row["negative"])
            by_sentence[sentence][row["reviewer"]] = row
        self.disagreements: list[Disagreement] = []
        self._rejected = defaultdict[str, set[tuple[str, str]]](set)  # qid → query and sentence
        self._approved = defaultdict[str, list[Row]](list)
        for (qid, query, text), by_reviewer in by_sentence.items():
            several = list(by_reviewer.values())
            if len({(row["verdict"], row["edited"]) for row in several}) > 1:
                verdicts = {name: by_reviewer[name]["verdict"] for name in sorted(by_reviewer)}
                self.disagreements.append(Disagreement(qid, several[0]["negative"], verdicts))
            if any(row["verdict"] == REJECT for row in several):
                self._rejected[qid].add((query, text))
            else:
                self._approved[qid].append(max(several, key=lambda row: (row["verdict"] == EDIT, row["time"])))

    @classmethod
    def of(cls, reviews: Sequence[Artifact]) -> "Verdicts":
        """Return the verdicts of these reviews."""
        return cls(row for artifact in reviews for part in Store().parts(artifact) for row in part.to_pylist())

    def rejects(self, qid: str, query: str, text: str) -> bool:
        """Return whether a sentence of a query was rejected."""
        return qid in self._rejected and (normal_form(query), normal_form(text)) in self._rejected[qid]

    def rejected(self, qid: str, query: str) -> set[str]:
        """Return the rejected sentences of a query, in their normal form."""
        return {text for of, text in self._rejected.get(qid, ()) if of == normal_form(query)}

    def approved(self, qid: str, query: str, source: str) -> dict[int, list[Row]]:
        """Return the verdicts by level that accept or edit a query's sentences of a source, the last verdict first."""
        levels = defaultdict[int, list[Row]](list)
        for row in sorted(self._approved.get(qid, ()), key=lambda row: row["time"], reverse=True):
            is_of_query = normal_form(row["query"]) == normal_form(query) and row["source"] == source
            if is_of_query and not self.rejects(qid, query, row["edited"] or row["negative"]):
                levels[row["level"]].append(row)
        return dict(sorted(levels.items()))
