"""Hard negatives of a sentence that is in no data set, with the tags, masks and dictionary of a run's data set.

A sentence is tagged, masked and filled as a training query is, by the same functions. Its negatives are the first fill
of each level: a choice among candidates would need other sentences of its kind.
"""

from dataclasses import dataclass

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.schemas import table_of
from penumbra.artifacts.store import Store
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.negatives.fills import fill_part, make_provider
from penumbra.tasks.negatives.providers import Provider
from penumbra.tasks.stage import zip_parts
from penumbra.tasks.text.dictionary import load_dictionary
from penumbra.tasks.text.masks import Masking, mask_part
from penumbra.tasks.text.tags import Tagging, load_pipeline, tag_part


@dataclass(frozen=True)
class Negative:
    """A negative of level 1 to 3; if `query` is empty, there is none, and `problem` is the reason."""

    level: int
    query: str
    problem: str = ""


class Negator:
    """Negatives of single sentences, from a spaCy pipeline, the masking of each level, and a provider of words."""

    def __init__(self, tagging: Tagging, masking: Masking, provider: Provider) -> None:
        self.tagging, self.masking, self.provider = tagging, masking, provider

    @classmethod
    def of_run(cls, metrics: Artifact) -> "Negator":
        """Return a negator with what the run was trained on, or else the newest of its data set.

        The provider is `corpus`, or `random` without tags. Raise `RunError` if the data set has no dictionary.
        """
        store = Store()
        ancestors = store.ancestors(metrics)

        def at_hand(stage: str) -> Artifact | None:
            return next(iter(ancestors.get(stage, ())), None) or store.newest_if_any(metrics.dataset, stage)

        dictionary, tags, masks = map(at_hand, ("dictionary", "tags", "masks"))
        if dictionary is None:
            raise RunError(
                f"{metrics.dataset} has no dictionary to fill negatives from: penumbra run build-negatives "
                f"{metrics.dataset} makes it"
            )
        tagging = Tagging(**store.manifest(tags).parameters) if tags else Tagging()
        made = store.manifest(masks).parameters if masks else {}
        masking = Masking(**{name: made[name] for name in Masking.model_fields.keys() & made.keys()})
        training = zip_parts(store.ancestors(tags)["annotations"][0], tags) if tags else ()
        name = "corpus" if tags else "random"
        return cls(tagging, masking, make_provider(name, load_dictionary(dictionary), training, Filling()))

    def negatives(self, sentence: str) -> list[Negative]:
        """Return the first fill of each level; none if the sentence has no word that may be masked."""
        row = {"qid": "0", "vid": "", "split": "train", "query": sentence, "duration": 1.0, "windows": [], "novel": []}
        annotations = table_of("annotations", [row])
        tags = tag_part(annotations, load_pipeline(self.tagging.spacy_model)).rows
        masks: pa.Table = mask_part(annotations, tags, self.masking.ratios, self.masking.primitives).rows
        fills = fill_part(tags, masks, self.provider, 1).rows.to_pylist()
        return [Negative(fill["level"], fill["negative"] or "", fill["problem"] or "") for fill in fills]
