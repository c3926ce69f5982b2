"""How the negatives are chosen from the candidates of all providers.

`candidates` gathers them and `checks` refuses what is no negative; `plausibility` says how natural a candidate reads;
`matching` picks, over all queries of a part, those that together look like the queries themselves; `nearness` sees that
the similarity falls from level to level; `choose` puts these together.
"""
