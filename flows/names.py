"""What users call the flows, and where each is; the modules are imported when one runs."""

FLOWS = {
    "build-negatives": ("penumbra.flows.build_negatives", "build_negatives"),
    "import-negatives": ("penumbra.flows.import_negatives", "import_negatives"),
    "train-grounding": ("penumbra.flows.train_grounding", "train_grounding"),
    "evaluate-grounding": ("penumbra.flows.evaluate_grounding", "evaluate_grounding"),
    "extract-features": ("penumbra.flows.extract_features", "extract_features"),
    "full-pipeline": ("penumbra.flows.full_pipeline", "full_pipeline"),
    "ablation": ("penumbra.flows.ablation", "ablation"),
}
