"""The golden file that a test compares with."""

import pytest

from tests.golden.reading import Golden, read_golden


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return read_golden(request.param)
