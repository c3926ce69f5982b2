"""How good negatives are, in the figures of the quality specification; each module measures one thing."""
