"""Stage `visual_dynamic_queries`: the part of a query that one frame shows, and the part that needs several (VDI, 3.2).

The static query is the query's noun chunks ("a person", "the cup"), the dynamic one is the rest ("puts … under").
spaCy finds the chunks in the dependency parse of the `tags` artifact. The paper leaves open:

- CLIP has no mask token, so words are removed and not masked; the others are joined by blanks, without punctuation.
- Determiners and pronouns belong to their chunk, as in spaCy; a single pronoun ("they") is a chunk, too.
- If a query has no noun chunk, or consists of noun chunks only, both of its queries are the whole query, and `split` is
  false. Training uses it in all losses but the two of VDI.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.stage import Stage, read_part

if TYPE_CHECKING:
    from spacy.vocab import Vocab

STAGE = "visual_dynamic_queries"
# argument of spaCy's Doc: field of a token
COLUMNS = {"words": "text", "spaces": "space_after", "pos": "pos", "tags": "tag", "deps": "dep", "heads": "head"}
PUNCTUATION = {"PUNCT", "SYM", "SPACE", "X"}


@cache
def _vocabulary() -> "Vocab":
    """Return an English vocabulary, which has the rules of noun chunks."""
    import spacy

    return spacy.blank("en").vocab


def split_query(tokens: Sequence[dict[str, Any]]) -> tuple[str, str, bool]:
    """Return the static query, the dynamic query, and whether the query could be split."""
    from spacy.tokens import Doc  # takes seconds to import

    columns: dict[str, Any] = {name: [token[key] for token in tokens] for name, key in COLUMNS.items()}
    doc = Doc(_vocabulary(), **columns)
    inside = {token.i for chunk in doc.noun_chunks for token in chunk}
    words = [token for token in doc if token.pos_ not in PUNCTUATION]
    static = " ".join(token.text for token in words if token.i in inside)
    dynamic = " ".join(token.text for token in words if token.i not in inside)
    if static and dynamic:
        return static, dynamic, True
    whole = doc.text.strip()
    return whole, whole, False


@dataclass(frozen=True)
class VisualDynamicQueries(Stage):
    """The static and the dynamic part of every query of every split."""

    name = STAGE
    version = 1

    tags: Artifact

    def part(self, piece: int) -> Part:
        [tags] = read_part(piece, self.tags)
        rows, notes = [], Counter[str]()
        for row in tags.to_pylist():
            static, dynamic, split = split_query(row["tokens"])
            rows.append({"qid": row["qid"], "static": static, "dynamic": dynamic, "split": split})
            notes.update([] if split else ["query without noun chunks, or of nothing else"])
        return Part(table_of(STAGE, rows), len(rows), len(rows), [], notes)
