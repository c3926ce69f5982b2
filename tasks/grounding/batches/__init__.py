"""Artifacts as training sees them: queries with their features, in memory."""
