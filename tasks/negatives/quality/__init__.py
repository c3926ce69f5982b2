"""How good negatives are: figures by level and provider, the report, and blind readings."""
