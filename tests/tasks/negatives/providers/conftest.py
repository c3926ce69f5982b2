"""Fixtures of the tests of hosted models."""

from tests.hosted import running, server  # noqa: F401
