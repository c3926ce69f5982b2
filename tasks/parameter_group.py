"""The base class of the flows' parameter groups. It does not import Prefect, which takes seconds."""

import json
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with `changes` on top, group by group."""
    merged = dict(base)
    for name, value in changes.items():
        old = merged.get(name)
        merged[name] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _adapt_to_forms(schema: dict[str, Any]) -> None:
    """Move the defaults of a JSON schema into its descriptions, and make booleans a choice of true and false.

    A form of the Prefect UI submits the defaults that it shows, and all its switches. Without them it submits only what
    a user entered, and a preset can set the rest. The form shows class names without `Config`: "QDDETR".
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


def _is_open_list(annotation: Any) -> bool:
    """Return whether a type is a list or tuple of any length, not `tuple[float, float]` or a union of types."""
    origin = get_origin(annotation)
    return origin is list or (origin is tuple and get_args(annotation)[-1] is ...)


class Parameters(BaseModel):
    """Base class of a group of parameters. Unknown names are errors; a list parameter also takes a single value."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_adapt_to_forms)

    @model_validator(mode="before")
    @classmethod
    def _lists_of_one(cls, values: Any) -> Any:
        """Read `providers=openai` as `providers=[openai]`."""
        if not isinstance(values, dict):
            return values
        lists = {name for name, field in cls.model_fields.items() if _is_open_list(field.annotation)}
        return {
            name: [it] if name in lists and isinstance(it, str | int | float) else it for name, it in values.items()
        }
