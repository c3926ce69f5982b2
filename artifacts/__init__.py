"""The contracts between stages: the schemas of tables, the store of artifacts, and what the Prefect UI shows."""
