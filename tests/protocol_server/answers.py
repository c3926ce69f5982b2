"""Valid answers without a model: by the schema in the request, or by the slots in its text.

`answer` is the replaceable part: `--answer module:function` puts another in its place.
"""

import functools
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

SLOT = re.compile(r"\[(\d+[A-Za-z]*) ([^:\[\]]+): ([^\[\]]+)\]")  # [3a opens: closes, washes, holds]
LETTERED = re.compile(r"(?:^| )([A-Z]) \S+")  # [7 opens: A closes B fixes C shuts], answered with the letters
GEMINI_TYPES = ("", "string", "number", "integer", "boolean", "array", "object", "null")  # the protobuf enum
WORDS = ("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heath")
DEEPEST = 8  # recursive schemas stop here


def answer(payload: dict[str, Any], seed: int = 0) -> str:
    """The text a well-behaved model gives: JSON by schema, JSON by slots, or a few words."""
    schema = schema_of(payload)
    if schema is not None:
        return json.dumps(instance(schema, schema, "", seed), ensure_ascii=False)
    slots = slots_of(payload)
    if slots:
        return json.dumps({label: pick(options, label, seed) for label, options in slots.items()}, ensure_ascii=False)
    text = " ".join(pick(WORDS, f"{text_of(payload)}{n}", seed) for n in range(4))
    return json.dumps({"answer": text}) if _is_json_mode(payload) else text


def pick(options: Any, path: str, seed: int) -> Any:
    """One of the options, by a hash of the seed, the place and the options themselves."""
    digest = zlib.crc32(f"{seed}\0{path}\0{options}".encode()) * 2654435761 >> 16
    return options[digest % len(options)]


def schema_of(payload: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema an OpenAI or a Gemini request asks for."""
    if "messages" in payload:
        asked = payload.get("response_format") or {}
        return (asked.get("json_schema") or {}).get("schema") if asked.get("type") == "json_schema" else None
    config = payload.get("generationConfig") or {}
    return config.get("responseSchema") or config.get("responseJsonSchema")


def texts_of(payload: dict[str, Any]) -> list[str]:
    """All prompt texts of a request, in order; the last is the user's newest."""
    if "messages" in payload:
        return [_text(message.get("content")) for message in payload["messages"]]
    system = payload.get("systemInstruction")
    return [_text(content.get("parts")) for content in ([system] if system else []) + payload.get("contents", [])]


def text_of(payload: dict[str, Any]) -> str:
    """The prompt as one text."""
    return "\n".join(texts_of(payload))


def slots_of(payload: dict[str, Any]) -> dict[str, list[str]]:
    """Slot label -> options, from the last message's text."""
    texts = texts_of(payload)
    return _slots(texts[-1]) if texts else {}


@functools.lru_cache(maxsize=1)  # the answer and the log ask for the same
def _slots(text: str) -> dict[str, list[str]]:
    return {label: _choices(options) for label, _, options in SLOT.findall(text)}


def _choices(options: str) -> list[str]:
    return LETTERED.findall(options) or options.replace(", ", ",").split(",")


def offered(payload: dict[str, Any]) -> dict[str, list[Any]]:
    """What may be chosen: property path (schema) or slot label (text) -> options."""
    schema = schema_of(payload)
    return slots_of(payload) if schema is None else dict(_enums(schema, schema, "", 0))


def instance(schema: dict[str, Any], root: dict[str, Any], path: str, seed: int, depth: int = 0) -> Any:
    """A value that the schema allows, always the same for the same seed."""
    schema = resolve(schema, root)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return pick(schema["enum"], path, seed)
    branches = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if branches:
        return instance(_branch(branches, root, depth), root, path, seed, depth + 1)
    kind = type_of(schema)
    if kind == "object":
        return _object(schema, root, path, seed, depth)
    if kind == "array":
        count = 0 if depth > DEEPEST else int(schema.get("minItems", 1))
        items = schema.get("items", {"type": "string"})
        return [instance(items, root, f"{path}[{n}]", seed, depth + 1) for n in range(count)]
    return _scalar(schema, kind, path, seed)


def resolve(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Follow `$ref` within the document."""
    while "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].lstrip("#").strip("/").split("/"):
            found = found[part] if part else found
        schema = found
    return schema


def type_of(schema: dict[str, Any]) -> str:
    """The type's name, from JSON Schema's or Gemini's spelling (`OBJECT`, or 6 from its Python client)."""
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    return GEMINI_TYPES[kind] if isinstance(kind, int) else str(kind).lower()


def properties_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and schemas, in the order in which they are to be answered."""
    properties = schema.get("properties", {})
    for name in schema.get("propertyOrdering") or properties:
        yield name, properties[name]


def _object(schema: dict[str, Any], root: dict[str, Any], path: str, seed: int, depth: int) -> dict[str, Any]:
    needed = set(schema.get("required", ())) if depth > DEEPEST else None
    return {
        name: instance(part, root, f"{path}.{name}".lstrip("."), seed, depth + 1)
        for name, part in properties_of(schema)
        if needed is None or name in needed
    }


def _scalar(schema: dict[str, Any], kind: str, path: str, seed: int) -> Any:
    if kind in {"integer", "number"}:
        low = schema.get("minimum", 0)
        return pick(range(int(low), int(schema.get("maximum", low + 9)) + 1), path, seed)
    if kind == "boolean":
        return pick((True, False), path, seed)
    return None if kind == "null" else pick(WORDS, path, seed)


def _branch(branches: list[dict[str, Any]], root: dict[str, Any], depth: int) -> dict[str, Any]:
    """The first branch that is no null; the null one when it is getting too deep."""
    nulls = [branch for branch in branches if type_of(resolve(branch, root)) == "null"]
    others = [branch for branch in branches if branch not in nulls]
    return nulls[0] if nulls and (depth > DEEPEST or not others) else others[0]


def _enums(schema: dict[str, Any], root: dict[str, Any], path: str, depth: int) -> Iterator[tuple[str, list[Any]]]:
    schema = resolve(schema, root)
    if "enum" in schema:
        yield path, schema["enum"]
    if depth > DEEPEST:
        return
    for name, part in properties_of(schema):
        yield from _enums(part, root, f"{path}.{name}".lstrip("."), depth + 1)
    if isinstance(schema.get("items"), dict):
        yield from _enums(schema["items"], root, f"{path}[]", depth + 1)


def _is_json_mode(payload: dict[str, Any]) -> bool:
    if "messages" in payload:
        return (payload.get("response_format") or {}).get("type") == "json_object"
    return (payload.get("generationConfig") or {}).get("responseMimeType") == "application/json"


def _text(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [])
