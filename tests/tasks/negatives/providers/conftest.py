"""Fixtures of the tests of providers; each module has sentences of its own, `SENTENCES` by id."""

import pyarrow as pa
import pytest
from spacy.language import Language

from penumbra.artifacts.schemas import table_of
from penumbra.tasks.negatives.fills import masked_queries
from penumbra.tasks.negatives.providers import MaskedQuery
from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from penumbra.tasks.text.masks import Masking, mask_part
from penumbra.tasks.text.tags import tag_part
from tests.hosted import running, server  # noqa: F401
from tests.rows import annotation

Tagged = tuple[pa.Table, pa.Table]


@pytest.fixture(scope="module")
def tagged(request: pytest.FixtureRequest, nlp: Language) -> Tagged:
    rows = [annotation(qid, text) for qid, text in request.module.SENTENCES.items()]
    annotations = table_of("annotations", rows)
    return annotations, tag_part(annotations, nlp).rows


@pytest.fixture(scope="module")
def queries(tagged: Tagged) -> list[MaskedQuery]:
    return masked_queries(tagged[1], mask_part(*tagged, Masking()).rows)


@pytest.fixture(scope="module")
def dictionary(tagged: Tagged) -> Dictionary:
    return Dictionary(dictionary_part([tagged]).rows)
