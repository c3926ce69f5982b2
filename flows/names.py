"""What users call the flows and their deployments, and where each flow is; its module is imported when it runs."""

from functools import cache
from pathlib import Path
from typing import Any

from penumbra.artifacts.settings import DEPLOYMENTS

FLOWS = {
    "build-negatives": ("penumbra.flows.build_negatives", "build_negatives"),
    "import-negatives": ("penumbra.flows.import_negatives", "import_negatives"),
    "train-grounding": ("penumbra.flows.train_grounding", "train_grounding"),
    "evaluate-grounding": ("penumbra.flows.evaluate_grounding", "evaluate_grounding"),
    "extract-features": ("penumbra.flows.extract_features", "extract_features"),
    "full-pipeline": ("penumbra.flows.full_pipeline", "full_pipeline"),
    "ablation": ("penumbra.flows.ablation", "ablation"),
}


@cache
def prefect_yaml() -> dict[str, Any]:
    """What prefect.yaml says; nobody writes into it."""
    return read_yaml(DEPLOYMENTS)


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML file of our own."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
    return dict(yaml.load(file.read_text(encoding="utf-8"), loader))  # noqa: S506 (it is safe)
