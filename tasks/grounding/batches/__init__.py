"""Artifacts as training sees them: queries with their features, on the device, in batches."""
