"""Negatives that are whole sentences: the nearest other queries, or those that others have made."""
