"""Stage `visual_dynamic_queries`: a static query, the noun chunks, and a dynamic query, the rest (VDI, section 3.2).

CLIP has no mask token, so the other words and punctuation are removed. A query without noun chunks, or with nothing
else, is not split: its static and dynamic query are the whole query, and training leaves it out of VDI's two losses.
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
    import spacy  # takes seconds to import

    return spacy.blank("en").vocab  # has the rules of noun chunks


def split_query(tokens: Sequence[dict[str, Any]]) -> tuple[str, str, bool]:
    """Return the static query, the dynamic query, and whether the query could be split."""
    from spacy.tokens import Doc

    columns: dict[str, Any] = {name: [token[key] for token in tokens] for name, key in COLUMNS.items()}
    doc = Doc(_vocabulary(), **columns)
    inside = {token.i for chunk in doc.noun_chunks for token in chunk}
    words = [token for token in doc if token.pos_ not in PUNCTUATION]
    static = " ".join(token.text for token in words if token.i in inside)
    dynamic = " ".join(token.text for token in words if token.i not in inside)
    whole = doc.text.strip()
    return (static, dynamic, True) if static and dynamic else (whole, whole, False)


@dataclass(frozen=True)
class VisualDynamicQueries(Stage):
    name = STAGE
    version = 1

    tags: Artifact

    def part(self, piece: int) -> Part:
        [tags] = read_part(piece, self.tags)
        rows, notes = [], Counter[str]()
        for row in tags.to_pylist():
            static, dynamic, split = split_query(row["tokens"])
            rows.append({"qid": row["qid"], "static": static, "dynamic": dynamic, "split": split})
            notes["query without noun chunks, or of nothing else"] += not split
        return Part(table_of(STAGE, rows), len(rows), len(rows), [], +notes)
