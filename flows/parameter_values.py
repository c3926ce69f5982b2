"""Values of parameters from text of unknown origin: YAML as far as JSON has it, without tags and aliases, and small."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from penumbra.artifacts.markdown import CONTROLS

LONGEST = 100_000  # characters of a file
DEEPEST = 20  # lists and groups within each other
WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,2})?")


class RefusedError(yaml.MarkedYAMLError):  # type: ignore[misc]
    """Text that may be YAML, but is not accepted."""

    def __init__(self, problem: str, event: Any = None) -> None:
        super().__init__(problem=problem, problem_mark=event and event.start_mark)


def read_value(text: str) -> Any:
    """Return the value of YAML text; dates and numbers that JSON does not have are text.

    Raises `RefusedError` if the text has more than `LONGEST` characters, a control character, a tag, an anchor, an
    alias, a name twice, or more than `DEEPEST` levels, and another `yaml.YAMLError` if it is no YAML.
    """
    if len(text) > LONGEST:
        raise RefusedError(f"it has more than {LONGEST:,} characters")
    _check_controls(text.replace("\r\n", "\n"))
    events = (event for event in yaml.parse(text, Loader=yaml.SafeLoader) if isinstance(event, NODES))
    first = next(events, None)
    value = None if first is None else _value(events, first, 0)
    if next(events, None):
        raise RefusedError("it has more than one document")
    return value


NODES = (yaml.NodeEvent, yaml.CollectionEndEvent)


def _check_controls(text: str, event: Any = None) -> None:
    found = CONTROLS.search(text)
    if found:
        raise RefusedError(f"it has the control character U+{ord(found[0]):04X}", event)


def _value(events: Iterator[Any], event: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise RefusedError(f"it has more than {DEEPEST} levels", event)
    if event.anchor or getattr(event, "tag", None):
        raise RefusedError("it has a tag, an anchor or an alias; text with & * or ! needs quotes", event)
    if isinstance(event, yaml.ScalarEvent):
        _check_controls(event.value, event)
        return _scalar(event.value) if event.implicit[0] else event.value
    if isinstance(event, yaml.SequenceStartEvent):
        return [_value(events, item, depth + 1) for item in _members(events)]
    mapping: dict[Any, Any] = {}
    for key in _members(events):
        name = _value(events, key, depth)
        if isinstance(name, list | dict) or name in mapping:
            raise RefusedError("it has a name twice, or a name that is no text", key)
        mapping[name] = _value(events, next(events), depth + 1)
    return mapping


def _members(events: Iterator[Any]) -> Iterator[Any]:
    """Yield the events of a list or group up to its end; the caller consumes those within each member."""
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            return
        yield event


def _scalar(text: str) -> Any:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if NUMBER.fullmatch(text) else text
