"""What two artifacts of a stage were made with differently."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penumbra.artifacts.manifest import Artifact, Manifest

Find = Callable[[Artifact], Manifest | None]  # returns the manifest of an artifact if it can be read
MOST = 4  # differences in a line


def differences(find: Find, now: Manifest, before: Manifest) -> str:
    """Return what differs between two artifacts and what they were made from: the value before, and the one now."""
    new, old = _settings(find, now), _settings(find, before)
    names = [name for name in {**new, **old} if new.get(name) != old.get(name)]
    names.sort(key=lambda name: name != "fills.provider")
    shown = [f"{name}={old.get(name, 'none')} (now {new.get(name, 'none')})" for name in names[:MOST]]
    shown += [f"{len(names) - MOST} more"] if len(names) > MOST else []
    return "; ".join(shown) or "the same parameters and inputs"


def _settings(find: Find, manifest: Manifest) -> dict[str, str]:
    """Return the parameters, inputs and versions of an artifact and its ancestors as JSON, by STAGE.NAME."""
    values: dict[str, list[Any]] = {}
    reviews, waiting, seen = 0, [manifest], set[tuple[str, str, str]]()
    for one in waiting:  # the list grows inside the loop
        if one.stage == "reviews":
            reviews += 1
        else:
            inputs = {f"content of {name}": digest[:8] for name, digest in one.inputs.items()}
            for name, value in flat({**one.parameters, **inputs, "version": one.stage_version}):
                values.setdefault(f"{one.stage}.{name}", []).append(value)
        for parent in one.parents:
            reference = parent.dataset, parent.stage, parent.key
            if reference not in seen:
                seen.add(reference)
                found = find(parent)
                waiting += [found] if found else []
    texts = {name: ", ".join(json.dumps(it, ensure_ascii=False) for it in several) for name, several in values.items()}
    return texts | {"reviews": str(reviews)}


def flat(parameters: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield parameters with the names that users type, GROUP.NAME."""
    for name, value in parameters.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{group}{name}.")
        else:
            yield f"{group}{name}", value
