"""Hard negatives: who fills the masks, which fills are chosen, and how good they are."""
