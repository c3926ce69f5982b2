"""What the parameter groups of flows have in common. Nothing of Prefect is loaded, which takes seconds."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict


def _as_forms_read(schema: dict[str, Any]) -> None:
    """Defaults become a part of the description, and a switch a choice.

    A form of the Prefect UI posts what it shows, and switches even if nobody touched them. So it shows what was said
    alone, and a preset may say the rest.
    """
    for said in schema.get("properties", {}).values():
        if "const" in said:
            continue  # tells the members of a union apart
        default = said.pop("default", None)
        if default is not None and "$ref" not in said:
            told = f"Default: {json.dumps(default, ensure_ascii=False)}."
            said["description"] = f"{said.get('description', '')} {told}".strip()
        kinds = [kind.get("type") for kind in said.get("anyOf", [said])]
        if "boolean" in kinds:
            said.pop("anyOf", None)
            said.pop("type", None)
            said["enum"] = [True, False]


class Parameters(BaseModel):
    """Base of the flows' parameter groups: a name that a group does not know is an error, not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_as_forms_read)
