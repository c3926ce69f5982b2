"""Stage `reviews`: people's verdicts on negatives, which are kept permanently.

`penumbra review` stores each file that the page of `penumbra browse` saves as an artifact whose key is a digest of its
content. All negatives that are made later follow the verdicts of all reviews of their data set.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from penumbra.artifacts.catalogue import MANIFEST
from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.checks import Candidate, normal_form

STAGE = "reviews"
ACCEPT, REJECT, EDIT = VERDICTS = ("accept", "reject", "edit")
FILLS = "fills"  # the source of negatives that were chosen from fills
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


class Verdicts:
    """The decisions of reviewers about the sentences of each query.

    The last verdict of each reviewer on a sentence counts. If reviewers disagree, a rejection has priority, then the
    last edit. `disagreements` has the query's id, the sentence, and each reviewer's verdict where they differ.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        by_sentence = defaultdict[tuple[str, str, str], dict[str, Row]](dict)
        for row in sorted(rows, key=lambda row: row["time"]):
            sentence = row["qid"], normal_form(row["query"]), normal_form(row["negative"])
            by_sentence[sentence][row["reviewer"]] = row
        self.disagreements: list[tuple[str, str, dict[str, str]]] = []
        self._rejected = defaultdict[tuple[str, str], set[str]](set)  # by query id and query
        self._approved = defaultdict[tuple[str, str], list[Row]](list)
        for (qid, query, text), by_reviewer in by_sentence.items():
            several = list(by_reviewer.values())
            if len({(row["verdict"], row["edited"]) for row in several}) > 1:
                verdicts = {name: by_reviewer[name]["verdict"] for name in sorted(by_reviewer)}
                self.disagreements.append((qid, several[0]["negative"], verdicts))
            if any(row["verdict"] == REJECT for row in several):
                self._rejected[qid, query].add(text)
            else:
                last = max(several, key=lambda row: (row["verdict"] == EDIT, row["time"]))
                self._approved[qid, query].append(last)

    @classmethod
    def of(cls, reviews: Sequence[Artifact]) -> "Verdicts":
        return cls(row for artifact in reviews for row in Store().rows(artifact))

    def rejected(self, qid: str, query: str) -> set[str]:
        """Return the rejected sentences of a query, in their normal form."""
        return self._rejected.get((qid, normal_form(query)), set()) if self._rejected else set()

    def rejects(self, qid: str, query: str, text: str) -> bool:
        rejected = self.rejected(qid, query)
        return bool(rejected) and normal_form(text) in rejected

    def approved(
        self, qid: str, query: str, source: str, fits: Callable[[int, Candidate], bool], texts: dict[int, str]
    ) -> Iterator[tuple[int, Candidate]]:
        """Yield each level of a query with the last sentence that a reviewer accepted or wrote and that `fits`.

        `texts` are the query's sentences of this source by level. An approved sentence replaces the sentence of its
        level, and must differ from the other levels' ones. An accepted sentence keeps its words, provider and model.
        """
        mine = [row for row in self._approved.get((qid, normal_form(query)), ()) if row["source"] == source]
        mine = [row for row in mine if not self.rejects(qid, query, row["edited"] or row["negative"])]
        latest_first = sorted(mine, key=lambda row: row["time"], reverse=True)
        for level in sorted({row["level"] for row in mine}):
            others = {normal_form(text) for at, text in texts.items() if at != level}
            for row in (row for row in latest_first if row["level"] == level):
                if row["verdict"] == EDIT:
                    it = Candidate(row["edited"], (), REVIEWER, row["reviewer"], EDIT)
                else:
                    it = Candidate(row["negative"], tuple(row["words"]), row["provider"], row["model"], ACCEPT)
                if normal_form(it.text) not in others and fits(level, it):
                    texts[level] = it.text
                    yield level, it
                    break
