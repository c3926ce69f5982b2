"""Negatives that are an artifact of this store: `negatives`, or the first fills of one provider."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
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

    def parts(self, queries: Collection[str] | None = None) -> Iterator[list[Negative]]:
        """Yield the rows of each part, of all queries or of these."""
        wanted = None if queries is None else pa.array(queries, pa.string())
        for index in range(len(self.store.manifest(self.artifact).parts)):
            yield self.part(index, wanted)

    def part(self, index: int, queries: pa.Array | None = None) -> list[Negative]:
        """The rows of a part, of all queries or of these; of several fills of a query and level the first."""
        chosen = self.artifact.stage == "negatives"
        columns = ["qid", "level", "negative", "provider", "similarity" if chosen else "status"]
        negatives = _of(self.store.part(self.artifact, index, columns), queries)
        if not len(negatives):
            return []
        annotations = self.store.part(self.annotations, index, ["qid", "vid", "query"])
        tags = self.store.part(self.tags, index, ["tokens"])
        about = _of(annotations.append_column("tokens", tags["tokens"]), queries)
        masks = None
        if self.masks:
            masks = _of(self.store.part(self.masks, index, ["qid", "level", "masked_query", "slots"]), queries)
        return list(_join(about, masks, negatives if chosen else first_fills(negatives)))


def first_fills(fills: pa.Table) -> pa.Table:
    """The first fill of each query and level that was filled."""
    done = fills.filter(pc.equal(fills["status"], FILLED))
    places: dict[tuple[str, int], int] = {}
    for at, place in enumerate(zip(done["qid"].to_pylist(), done["level"].to_pylist(), strict=True)):
        places.setdefault(place, at)
    return done.take(pa.array(places.values(), pa.int64()))


def _of(rows: pa.Table, queries: pa.Array | None) -> pa.Table:
    """The rows of these queries, or all."""
    return rows if queries is None else rows.filter(pc.is_in(rows["qid"], queries))


def _join(queries: pa.Table, masks: pa.Table | None, negatives: pa.Table) -> Iterator[Negative]:
    about = {row["qid"]: row for row in queries.drop_columns("tokens").to_pylist()}
    lemmas = dict(zip(queries["qid"].to_pylist(), _lemmas(queries["tokens"]), strict=True)) if masks else {}
    masked = {(row["qid"], row["level"]): row for row in masks.to_pylist()} if masks else {}
    for row in negatives.to_pylist():
        qid = row["qid"]
        mask = masked.get((qid, row["level"]))
        yield Negative(
            qid,
            about[qid]["vid"],
            row["level"],
            about[qid]["query"],
            row["negative"],
            row["provider"],
            mask and mask["masked_query"],
            mask and _slots(mask["slots"], lemmas[qid]),
            row.get("similarity"),
        )


def _lemmas(tokens: pa.ChunkedArray) -> list[list[str]]:
    """The lemmas of each query's tokens."""
    several = tokens.combine_chunks()
    lemmas = pc.struct_field(several.flatten(), "lemma")
    ends = np.cumsum(pc.list_value_length(several).to_numpy())
    return [part.tolist() for part in np.split(lemmas.to_numpy(zero_copy_only=False), ends[:-1])] if len(ends) else []


def _slots(slots: list[dict[str, Any]], lemmas: list[str]) -> tuple[Slot, ...]:
    return tuple(Slot(**slot, lemma=lemmas[slot["token"]]) for slot in slots)
