"""Negatives beside their queries, as people read them in the Prefect UI: what was changed is marked."""

from difflib import SequenceMatcher
from typing import Any

from penumbra.artifacts.markdown import Markdown, bold, plain
from penumbra.artifacts.prefect_ui import Rows


def beside_their_queries(rows: Rows) -> Rows:
    """Rows of `negatives` for people, with the columns that they look at first."""
    return [_beside(row) for row in rows]


def _beside(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "query": row["query"],
        "level": row["level"],
        "negative": marked(row["query"], row["negative"]),
        "cosine": row["similarity"],
        "plausibility": row["plausibility"],
        "provider": row["provider"],
        "qid": row["qid"],
    }


def marked(query: str, negative: str) -> Markdown:
    """The negative, the words in it that its query does not have at their place in bold."""
    before, after = query.split(), negative.split()
    matched = SequenceMatcher(None, before, after, autojunk=False)
    told = [
        plain(" ".join(after[start:end])) if kind == "equal" else bold(" ".join(after[start:end]))
        for kind, _, _, start, end in matched.get_opcodes()
        if end > start
    ]
    return Markdown(" ".join(told))
