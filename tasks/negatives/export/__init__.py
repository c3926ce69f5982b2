"""Negatives out of the store, in the forms that others read: JSON lines, CSV, Parquet, a folder for the Hub."""
