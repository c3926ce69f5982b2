"""Errors whose cause is outside the code: a missing file, a model that can't be loaded, a damaged artifact."""

import re
from collections.abc import Sequence
from difflib import get_close_matches


class PenumbraError(Exception):
    """An error outside the code. Its message is one line that names the cause and the remedy."""


class MissingError(PenumbraError):
    """A file or a model that users have to fetch first is missing; the message says how."""


class ArtifactError(PenumbraError):
    """An artifact is missing, unfinished or damaged, a table has a wrong schema, or the store can't be reached."""


def what_there_is(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the most similar known name, and all known names."""
    nearest = "".join(f"did you mean {near}? " for near in get_close_matches(name, known, 1))
    return f"{nearest}there is: {', '.join(known) or 'nothing yet'}"


def without_secrets(text: str) -> str:
    """Return the text without the user, password (even one with blanks) and query of each address in it."""
    return re.sub(r"(?<=://)(?:[^\s/@]*:.*|\S*)@|(?<=\S)\?[^\s\"']*", "", text)
