"""What two artifacts of a stage were made with differently, in the names that users type."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from penumbra.artifacts.manifest import Artifact, Manifest

Find = Callable[[Artifact], Manifest | None]  # returns the manifest of an artifact if it can be read

GROUPS = {  # stage → group of the parameters that its manifest records
    "tags": "tagging",
    "masks": "masking",
    "fills": "filling",
    "embeddings": "encoding",
    "negatives": "choosing",
    "in_video_negatives": "pairing",
    "quality": "judging",
    "text_features": "clip",
    "video_features": "clip",
    "patch_features": "clip",
    "predictions": "",
    "metrics": "",
}
GROUPED = {  # parameters of another group than most of their stage
    "sentence_model": "encoding",
    "batch_size": "encoding",
    "source": "sourcing",
    "ranks": "sourcing",
    "file": "sourcing",
}
SHARED = ("seed", "options", "queries_a_request", "prompt")  # of all providers
FREE = ("corpus", "random", "llama")  # providers with more candidates than a hosted model
PROVIDERS = "filling.providers"
MOST = 4  # differences in a line


def differences(find: Find, now: Manifest, before: Manifest) -> str:
    """Return what differs between two artifacts and what they were made from: the value before, and the one now."""
    new, old = dict(_settings(find, now)), dict(_settings(find, before))
    names = [name for name in {**new, **old} if new.get(name) != old.get(name)]
    if PROVIDERS in names:  # each provider has parameters of its own
        alike = [name for name in names if not name.startswith("filling.") or (name in new and name in old)]
        names = sorted(alike, key=lambda name: name != PROVIDERS)
    shown = [f"{name}={_text(old, name)} (now {_text(new, name)})" for name in names[:MOST]]
    shown += [f"{len(names) - MOST} more"] if len(names) > MOST else []
    return "; ".join(shown) or "the same parameters and inputs"


def _text(settings: dict[str, Any], name: str) -> str:
    return json.dumps(settings[name], ensure_ascii=False) if name in settings else "none"


def _settings(find: Find, manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an artifact and its ancestors as users type them, their inputs and versions."""
    providers, reviews, waiting, seen = list[str](), 0, [manifest], set[tuple[str, str, str]]()
    for one in waiting:  # the list grows inside the loop
        if one.stage == "fills" and "substitutes" not in one.parameters:
            providers.append(str(one.parameters.get("provider")))
        reviews += one.stage == "reviews"
        if one.stage != "reviews":
            yield from ((_typed(one, name), value) for name, value in _flat(one.parameters))
            yield from ((f"{one.stage}: content of {name}", digest[:8]) for name, digest in one.inputs.items())
            yield f"version of {one.stage}", one.stage_version
        for parent in one.parents:
            if (parent.dataset, parent.stage, parent.key) not in seen:
                seen.add((parent.dataset, parent.stage, parent.key))
                found = find(parent)
                waiting += [found] if found else []
    if providers:
        yield PROVIDERS, providers
    yield "reviews", reviews


def _flat(parameters: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in parameters.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{group}{name}.")
        elif f"{group}{name}" not in ("provider", "substitutes"):
            yield f"{group}{name}", value


def _typed(manifest: Manifest, name: str) -> str:
    """Return the name by which users set a parameter."""
    group = GROUPED.get(name) or GROUPS.get(manifest.stage, manifest.stage)
    provider = manifest.parameters.get("provider")
    if manifest.stage == "fills" and name == "candidates":
        name = name if provider in FREE else f"asked_{name}"
    elif manifest.stage == "fills" and name not in SHARED:
        group = f"filling.{provider}"
    return ".".join(filter(None, (group, name.removeprefix("settings."))))
