"""What is not the code's fault: a missing file, a model that can't be loaded, a damaged artifact."""

import re
from collections.abc import Sequence
from difflib import get_close_matches


class PenumbraError(Exception):
    """Something outside the code is wrong; the message is one line that names it and the remedy."""


class MissingError(PenumbraError):
    """What people have to fetch first is not there; the message says how."""


class ArtifactError(PenumbraError):
    """An artifact is not there, not whole, or not what its manifest says, or the store can't be reached."""


def what_there_is(name: str, known: Sequence[str]) -> str:
    """The end of a message about a name that nothing has: the nearest of those that are there, and all of them."""
    nearest = "".join(f"did you mean {near}? " for near in get_close_matches(name, known, 1))
    return f"{nearest}there is: {', '.join(known) or 'nothing yet'}"


def without_secrets(text: str) -> str:
    """The text, its addresses without name, password and what follows a question mark."""
    return re.sub(r"(?<=://)[^/\s]*@|(?<=\S)\?[^\s\"']*", "", text)
