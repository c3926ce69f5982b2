"""Quality of negatives: figures by level and provider, the report, and blind readings."""
