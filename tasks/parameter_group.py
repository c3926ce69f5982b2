"""The base class of the flows' parameter groups. It does not import Prefect, which takes seconds."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with `changes` on top, group by group."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _adapt_to_forms(schema: dict[str, Any]) -> None:
    """Move defaults into the descriptions, and turn switches into choices.

    A form of the Prefect UI posts what it shows, and switches even if nobody touched them. Without defaults it posts
    only what a user entered, and a preset can set the rest. The form names a class without `Config`: "QDDETR".
    """
    schema["title"] = schema["title"].removesuffix("Config")
    for item in schema.get("properties", {}).values():
        if "const" in item:
            continue  # the name of a member of a union
        default = item.pop("default", None)
        if default is not None and "$ref" not in item:
            sentence = f"Default: {json.dumps(default, ensure_ascii=False)}."
            item["description"] = f"{item.get('description', '')} {sentence}".strip()
        kinds = [kind.get("type") for kind in item.get("anyOf", [item])]
        if "boolean" in kinds:
            item.pop("anyOf", None)
            item.pop("type", None)
            item["enum"] = [True, False]


class Parameters(BaseModel):
    """Base class of a group of parameters. An unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_adapt_to_forms)
