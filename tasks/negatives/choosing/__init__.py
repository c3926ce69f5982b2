"""How the negatives are chosen from the candidates of all providers.

`candidates` gathers them; `checks` refuses what is no negative, and `guard` knows what the test splits hold out;
`choose` takes the first that hold together; `plausibility` says how natural they read.
"""
