"""Data sets: files of several formats, read into one table of queries, videos and windows."""
