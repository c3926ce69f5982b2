"""Data sets: their own files, as one table of queries, videos and windows."""
