"""The DAGs: which stage feeds which, and nothing else."""
