"""Negatives that are an artifact of this store: `negatives`, or the first fills of one provider."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.providers import Slot
from penumbra.tasks.negatives.quality.negative import Negative, NegativesError
from penumbra.tasks.negatives.quality.source import AnnotatedDataset, embedded

FILLED = "filled"
STAGES = ("negatives", "fills")


@dataclass(frozen=True)
class ArtifactNegatives:
    """The rows of an artifact, joined with the queries and masks that it was made from."""

    store: Store
    artifact: Artifact

    @property
    def name(self) -> str:
        """Data set, stage and key."""
        return f"{self.artifact.dataset}/{self.artifact.stage}/{self.artifact.key}"

    @cached_property
    def made_from(self) -> dict[str, list[Artifact]]:
        """Its ancestors; raises `NegativesError` where it names no annotations or tags."""
        parents = self.store.ancestors(self.artifact)
        lacking = [stage for stage in ("annotations", "tags") if stage not in parents]
        if self.artifact.stage not in STAGES:
            raise NegativesError(f"{self.name} holds no negatives: give DATASET/negatives or DATASET/fills")
        if lacking:
            raise NegativesError(f"{self.artifact.path} does not name its {' and '.join(lacking)}: build it again")
        return parents

    @property
    def fills(self) -> list[Artifact]:
        """The fills that it was chosen from; its own where it is one."""
        return [self.artifact] if self.artifact.stage == "fills" else self.made_from.get("fills", [])

    def drawn(self) -> list["ArtifactNegatives"]:
        """The first fills of each provider that it was chosen from."""
        return [] if self.artifact.stage == "fills" else [ArtifactNegatives(self.store, fills) for fills in self.fills]

    def dataset(self) -> AnnotatedDataset:
        """The data set that it was made from."""
        return AnnotatedDataset(
            self.store, self.artifact.dataset, self.annotations, self.tags, embedded(self.store, self.annotations)
        )

    @property
    def annotations(self) -> Artifact:
        """The queries that it was made from."""
        return self.made_from["annotations"][0]

    @property
    def tags(self) -> Artifact:
        """Their tokens."""
        return self.made_from["tags"][0]

    @property
    def masks(self) -> Artifact | None:
        """Their masks; None for negatives that are whole sentences."""
        return next(iter(self.made_from.get("masks", ())), None)

    def parts(self) -> Iterator[list[Negative]]:
        """Yield the rows of each part; of several fills of a query and level the first."""
        columns = ["qid", "level", "query", "provider"]
        chosen = self.artifact.stage == "negatives"
        streams = (
            self.store.parts(self.annotations, ["qid", "vid", "query"]),
            self.store.parts(self.tags, ["tokens"]),
            self._masks(),
            self.store.parts(self.artifact, [*columns, "similarity" if chosen else "status"]),
        )
        for queries, tags, masks, negatives in zip(*streams, strict=True):
            yield list(_join(queries, tags, masks, negatives if chosen else first_fills(negatives)))

    def _masks(self) -> Iterable[pa.Table | None]:
        """The masks, part by part."""
        if self.masks is None:
            return [None] * len(self.store.manifest(self.artifact).parts)
        return self.store.parts(self.masks, ["qid", "level", "masked_query", "slots"])


def first_fills(fills: pa.Table) -> pa.Table:
    """The first fill of each query and level that was filled."""
    done = fills.filter(pc.equal(fills["status"], FILLED))
    places: dict[tuple[str, int], int] = {}
    for at, place in enumerate(zip(done["qid"].to_pylist(), done["level"].to_pylist(), strict=True)):
        places.setdefault(place, at)
    return done.take(pa.array(places.values(), pa.int64()))


def _join(queries: pa.Table, tags: pa.Table, masks: pa.Table | None, negatives: pa.Table) -> Iterator[Negative]:
    about = {row["qid"]: row for row in queries.to_pylist()}
    masked = {(row["qid"], row["level"]): row for row in masks.to_pylist()} if masks else {}
    tokens = dict(zip(queries["qid"].to_pylist(), tags["tokens"].to_pylist(), strict=True))
    for row in negatives.to_pylist():
        qid = row["qid"]
        mask = masked.get((qid, row["level"]))
        yield Negative(
            qid, about[qid]["vid"], row["level"], about[qid]["query"], row["query"], row["provider"],
            mask and mask["masked_query"], mask and _slots(mask["slots"], tokens[qid]), row.get("similarity"),
        )  # fmt: skip


def _slots(slots: list[dict[str, Any]], tokens: list[dict[str, Any]]) -> tuple[Slot, ...]:
    return tuple(Slot(**slot, lemma=tokens[slot["token"]]["lemma"]) for slot in slots)
