"""Grounding models: trained, judged, compared, and asked."""
