"""The contracts between stages: each table's schema, the store that keeps them, and what the Prefect UI shows."""
