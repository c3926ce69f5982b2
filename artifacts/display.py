"""The first rows of an artifact as people read them, in the Prefect UI and in a terminal."""

from difflib import SequenceMatcher
from itertools import islice
from typing import Any

from penumbra.artifacts.manifest import Artifact
from penumbra.artifacts.markdown import Markdown, bold, plain
from penumbra.artifacts.store import Store

Row = dict[str, Any]


def rows_for_display(store: Store, artifact: Artifact, most: int) -> list[Row]:
    """Return at most `most` rows, changed by the function of `FORMS` for their table; `Markdown` cells are markup."""
    form = FORMS.get(artifact.stage, dict)
    return [form(row) for row in islice(store.shown_rows(artifact), most)]


def tagged_query(row: Row) -> Row:
    """Return a row of `tags` with the query as word/TAG, primitives in bold."""
    words = [(bold if it["primitive"] else plain)(it["text"]) + plain(f"/{it['tag']}") for it in row["tokens"]]
    return {"query": Markdown(" ".join(words)), "qid": row["qid"]}


def compared_negative(row: Row) -> Row:
    """Return a row of `negatives`: the query first, and what differs from it in bold."""
    shown = {"query": row["query"], "level": row["level"], "negative": mark_changes(row["query"], row["negative"])}
    figures = {"cosine": row["similarity"], "plausibility": row["plausibility"]}
    return shown | figures | {"provider": row["provider"], "qid": row["qid"]}


def mark_changes(query: str, negative: str) -> Markdown:
    """Return the negative with the words in bold that the query does not have at their place."""
    before, after = query.split(), negative.split()
    pieces = [
        (plain if kind == "equal" else bold)(" ".join(after[start:end]))
        for kind, _, _, start, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if end > start
    ]
    return Markdown(" ".join(pieces))


FORMS = {"tags": tagged_query, "negatives": compared_negative, "judging_negatives": compared_negative}
