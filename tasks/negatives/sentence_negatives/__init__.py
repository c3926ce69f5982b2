"""Negatives that are whole sentences, not filled masks: other queries of the data set, or what others have made.

They make the same table as those that are chosen of fills, and are judged by the same checks, whose names they carry.
"""
