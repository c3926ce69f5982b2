"""What a terminal shows of text of unknown origin: a query, a model's answer, an error of a server.

Such text may hold sequences that set a terminal's title, answer for the user, or reorder a line. Each line for a
terminal goes through one of these functions, or through a `SafeConsole`.
"""

import json
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from penumbra.artifacts.markdown import CONTROLS, for_terminal


class SafeConsole(Console):
    """A console of rich that replaces the control characters of all text, and keeps its own."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(it if it.control else Segment(for_terminal(it.text), it.style) for it in buffer)


def write_error(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{for_terminal(line)}\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with control characters escaped as JSON escapes them."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
