"""Fixtures of the tests of providers."""

import pyarrow as pa
import pytest

from penumbra.tasks.text.dictionary import Dictionary, dictionary_part
from tests.hosted import running, server  # noqa: F401


@pytest.fixture(scope="module")
def dictionary(tagged: tuple[pa.Table, pa.Table]) -> Dictionary:
    """The dictionary of the tagged sentences, which each module of tests has for itself."""
    return Dictionary(dictionary_part([tagged]).rows)
