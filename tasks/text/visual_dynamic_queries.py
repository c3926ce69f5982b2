"""Stage `visual_dynamic_queries`: what of a query can be seen in one frame, and what needs several (VDI, section 3.2).

The static query is the query's noun chunks ("a person", "the cup"), the dynamic one is all the rest ("puts … under").
Chunks are spaCy's, over the dependency parse of the `tags` artifact. What the paper leaves open:

- CLIP has no mask token, so that words are left out and not masked: what is left is joined by blanks, without
  punctuation.
- Determiners and pronouns belong to their chunk, as spaCy has it; a chunk that is a pronoun alone ("they") is one.
- A query without a noun chunk, or made of nothing else, has no counterpart: both its queries are then the whole query
  and `split` is false. Training leaves it out of VDI's two losses and keeps it in all others.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.stage import Stage, read_part, run

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

STAGE = "visual_dynamic_queries"
PUNCTUATION = {"PUNCT", "SYM", "SPACE", "X"}


@cache
def _vocabulary() -> "Vocab":
    """An English vocabulary: it knows what a noun chunk is."""
    import spacy

    return spacy.blank("en").vocab


def document(tokens: Sequence[dict[str, Any]]) -> "Doc":
    """A row of the `tokens` column as spaCy's parsed document."""
    from spacy.tokens import Doc  # takes seconds to import: only where queries are split

    columns = {name: [token[name] for token in tokens] for name in ("text", "space_after", "pos", "tag", "dep", "head")}
    return Doc(
        _vocabulary(),
        words=columns["text"],
        spaces=columns["space_after"],
        pos=columns["pos"],
        tags=columns["tag"],
        deps=columns["dep"],
        heads=columns["head"],
    )


def split_query(tokens: Sequence[dict[str, Any]]) -> tuple[str, str, bool]:
    """Static query, dynamic query, and whether the query could be split; see the module."""
    doc = document(tokens)
    inside = {token.i for chunk in doc.noun_chunks for token in chunk}
    words = [token for token in doc if token.pos_ not in PUNCTUATION]
    static = " ".join(token.text for token in words if token.i in inside)
    dynamic = " ".join(token.text for token in words if token.i not in inside)
    if static and dynamic:
        return static, dynamic, True
    whole = doc.text.strip()
    return whole, whole, False


def queries_part(tags: pa.Table) -> Part:
    """Split the queries of one part of `tags`."""
    rows, notes = [], Counter[str]()
    for row in tags.to_pylist():
        static, dynamic, split = split_query(row["tokens"])
        rows.append({"qid": row["qid"], "static": static, "dynamic": dynamic, "split": split})
        notes.update([] if split else ["query without noun chunks, or of nothing else"])
    return Part(table_of(STAGE, rows), len(rows), len(rows), [], notes)


@dataclass(frozen=True)
class VisualDynamicQueries(Stage):
    """The static and the dynamic part of every query of every split."""

    name = STAGE
    version = 1

    tags: Artifact

    def part(self, piece: int) -> Part:
        """Split the queries of one part of `tags`."""
        [tags] = read_part(piece, self.tags)
        return queries_part(tags)


def split_queries(tags: Artifact) -> Artifact:
    """Split every query of every split."""
    return run(VisualDynamicQueries(tags))
