"""Values of parameters from text of unknown origin: YAML as far as JSON has it, without tags and aliases, and small."""

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from penumbra.artifacts.markdown import CONTROLS

LONGEST = 100_000  # characters of a file
DEEPEST = 20  # lists and groups within each other
WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?([eE][-+]?[0-9]{1,2})?")


class JsonLoader(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that refuses what JSON does not have; dates and further kinds of numbers are text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (yaml's own form)
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a value, unless it has a tag, an anchor or an alias, or is too deep."""
        event = self.peek_event()
        if event.anchor or getattr(event, "tag", None):
            problem = "it has a tag, an anchor or an alias; text with & * or ! needs quotes"
            raise ConstructorError(None, None, problem, event.start_mark)
        if self.depth > DEEPEST:
            raise ConstructorError(None, None, f"it has more than {DEEPEST} levels", event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a group of parameters, unless it has a name twice."""
        mapping: dict[Any, Any] = {}
        for key, value in node.value:
            name = self.construct_object(key, deep=True)
            if isinstance(name, list | dict) or name in mapping:
                raise ConstructorError(None, None, "it has a name twice, or a name that is no text", key.start_mark)
            mapping[name] = self.construct_object(value, deep=True)
        return mapping

    def construct_yaml_str(self, node: Any) -> Any:
        """Return the value of a word, or the text in quotes."""
        if found := CONTROLS.search(node.value):
            raise ConstructorError(None, None, f"it has the control character U+{ord(found[0]):04X}", node.start_mark)
        text = node.value
        if node.style is not None or not (text.lower() in WORDS or NUMBER.fullmatch(text)):
            return text
        if text.lower() in WORDS:
            return WORDS[text.lower()]
        return int(text) if INTEGER.fullmatch(text) else float(text)


JsonLoader.add_constructor("tag:yaml.org,2002:str", JsonLoader.construct_yaml_str)


def read_value(text: str) -> Any:
    """Return the value of YAML text; raise `yaml.YAMLError`, which is `ConstructorError` if it is refused."""
    if len(text) > LONGEST:
        raise ConstructorError(None, None, f"it has more than {LONGEST:,} characters")
    if found := CONTROLS.search(text.replace("\r\n", "\n")):
        raise ConstructorError(None, None, f"it has the control character U+{ord(found[0]):04X}")
    return yaml.load(text, JsonLoader)  # noqa: S506 (it makes nothing but JSON's values)
