"""How many of the syntactic relations that fills introduce human text attests.

An n-gram model lets "person wash a picture" pass, for its neighbours fit; its verb-object relation does not.
"""

from penumbra.tasks.text.relations import Relation, Tokens, relations


def attested(negative: Tokens, positive: Tokens, human: set[Relation]) -> tuple[int, int]:
    """How many of the relations that the negative has and the positive lacks human text has, of how many."""
    fresh = set(relations(negative)) - set(relations(positive))
    return len(fresh & human), len(fresh)
