"""Stage `tags`: the tokens of every query with lemma, part of speech, dependency, primitive class and subject.

Primitives are the words that carry the meaning of a sentence: verbs, nouns, adjectives, prepositions and adverbs
(SHINE, section 3.2). The rules here work with the output of any English spaCy pipeline.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pydantic import Field

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import file_digest
from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.manifest import Artifact, Part
from penumbra.artifacts.schemas import table_of
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.progress import counting
from penumbra.tasks.stage import Stage, read_part

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

STAGE = "tags"
SHIPPED_PIPELINE = "penumbra"
PIPELINE_FOLDER = PROJECT / "models" / "tagger"
PRIMITIVES = {
    "VERB": "verb",
    "NOUN": "noun",
    "PROPN": "noun",
    "ADJ": "adjective",
    "ADP": "preposition",
    "ADV": "adverb",
}
SUBJECT_ARCS = {"nsubj", "nsubjpass", "nsubj:pass"}
# Treebanks disagree on "sits down" and "puts away". With a verb, these words count as prepositions (they are the Penn
# Treebank's particles); every other particle ("back", "away") is an adverb.
PARTICLES = {"up", "down", "off", "out", "on", "in", "over", "through", "past"}
WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|['-])*\Z")


class Tagging(Parameters):
    """The spaCy pipeline that tags queries."""

    spacy_model: str = Field(
        SHIPPED_PIPELINE,
        description="An installed spaCy package (en_core_web_sm, …) or the path of a pipeline. "
        "Default: the small English pipeline that comes with the project.",
    )


@cache
def load_pipeline(spacy_model: str) -> "Language":
    """Load the pipeline; raise `PenumbraError` with the remedy if that fails."""
    import spacy  # imports torch, which takes seconds

    source = str(PIPELINE_FOLDER) if spacy_model == SHIPPED_PIPELINE else spacy_model
    try:
        nlp = spacy.load(source, exclude=["ner"])
    except (OSError, ValueError) as error:
        raise PenumbraError(
            f"spaCy pipeline {spacy_model!r} can't be loaded ({error}): install it with "
            f"`python -m spacy download {spacy_model}`, or leave spacy_model at {SHIPPED_PIPELINE!r}"
        ) from None
    lacking = {"parser", "lemmatizer"} - set(nlp.pipe_names)
    if lacking:
        raise PenumbraError(f"spaCy pipeline {spacy_model!r} lacks {', '.join(sorted(lacking))}: use an English one")
    return nlp


def primitive_of(token: "Token") -> str | None:
    """Return the primitive class of a token, or None, as for auxiliaries.

    A subordinator before a gerund counts as a preposition ("after eating").
    """
    is_auxiliary = token.dep_ in ("aux", "auxpass") or token.lemma_ == "be"
    if not WORD.match(token.text) or (is_auxiliary and token.pos_ in ("AUX", "VERB")):
        return None
    if token.pos_ == "SCONJ":
        return "preposition" if token.tag_ == "IN" and token.head.tag_ == "VBG" and token.i < token.head.i else None
    if token.dep_ in ("prt", "advmod") and token.pos_ in ("ADP", "ADV") and token.head.pos_ in ("VERB", "AUX"):
        return "preposition" if token.lower_ in PARTICLES else "adverb"
    if (token.dep_, token.pos_) == ("compound", "ADJ") or (token.pos_, token.tag_) == ("NUM", "NN"):
        return "noun"  # "the wardrobe door", "the other one"
    return PRIMITIVES.get(token.pos_)


def subjects_of(doc: "Doc") -> set[int]:
    """Return the indices of the nouns that are subjects.

    Subjects are the nouns with a nominal-subject arc. Without such an arc ("person opening a door.", "person they sit
    down.") the subject is the first noun before the first verb. If another noun repeats the first one ("person a guy
    is sitting."), only the first one is a subject.
    """
    nouns = [t for t in doc if t.pos_ in ("NOUN", "PROPN")]
    first_verb = next((t.i for t in doc if t.pos_ in ("VERB", "AUX")), len(doc))
    first = {t.i for t in nouns[:1] if t.i < first_verb}
    subjects = {t.i for t in nouns if t.dep_ in SUBJECT_ARCS}
    heads = [doc[i].head.i for i in subjects]
    repeated = any(
        doc[i].dep_ in ("dep", "dislocated") or (i in subjects and heads.count(doc[i].head.i) > 1) for i in first
    )
    return first if repeated or not subjects else subjects


def describe(doc: "Doc") -> list[dict[str, object]]:
    """Return a parsed query as a value of the column `tokens`."""
    subjects = subjects_of(doc)
    return [
        {
            "text": token.text,
            "space_after": bool(token.whitespace_),
            "lemma": token.lemma_.lower(),
            "pos": token.pos_,
            "tag": token.tag_,
            "dep": token.dep_,
            "head": token.head.i,
            "primitive": primitive_of(token),
            "is_subject": token.i in subjects,
        }
        for token in doc
    ]


def tag_texts(texts: Iterable[str], nlp: "Language") -> Iterator[list[dict[str, object]]]:
    """Yield the tokens of each text in order; a text that occurs twice is parsed once."""
    texts = list(texts)
    distinct = sorted(set(texts), key=len)
    tick, parsed = counting("texts", len(distinct)), dict[str, list[dict[str, object]]]()
    for doc in nlp.pipe(distinct, batch_size=256):
        parsed[doc.text] = describe(doc)
        tick(1)
    return (parsed[text] for text in texts)


def tag_part(annotations: pa.Table, nlp: "Language") -> Part:
    tokens = tag_texts(annotations["query"].to_pylist(), nlp)
    rows = [{"qid": qid, "tokens": own} for qid, own in zip(annotations["qid"].to_pylist(), tokens, strict=True)]
    return Part(table_of(STAGE, rows), len(rows), len(rows))


@dataclass(frozen=True)
class Tags(Stage):
    name = STAGE
    version = 1

    annotations: Artifact
    tagging: Tagging

    def inputs(self) -> dict[str, str]:
        model = self.tagging.spacy_model
        folder = PIPELINE_FOLDER if model == SHIPPED_PIPELINE else Path(model)  # found without importing spaCy
        folder = folder if folder.is_dir() else Path(str(load_pipeline(model).path))
        return {"spaCy pipeline": file_digest(folder)}

    def part(self, piece: int) -> Part:
        [annotations] = read_part(piece, self.annotations)
        return tag_part(annotations, load_pipeline(self.tagging.spacy_model))
