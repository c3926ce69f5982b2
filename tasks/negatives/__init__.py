"""Hard negatives: providers that fill the masks, the choice of fills, and their quality."""
