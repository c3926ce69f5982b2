"""Novel-Composition and Novel-Word splits of a user's own queries, as in Charades-CG (Li et al., CVPR 2022).

A training video is in no test split. Novel-Word has the test queries with a word that no training query has,
Novel-Composition those with a pair of lemmas that occur in training, but not together; `test` has the others.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

from penumbra.artifacts.markdown import counted
from penumbra.tasks.data.dataset import DatasetError
from penumbra.tasks.data.queries import Label, in_order, share_of
from penumbra.tasks.data.rows import TRAINING
from penumbra.tasks.text.relations import Tokens, relations

Pair = tuple[str, str, str]  # type, and two lemmas in the order of the type's name
Word = tuple[str, str]  # part of speech, lemma
Item = TypeVar("Item", bound=tuple[str, ...])

# The authors' choice is not known. 1,200 training videos of Charades-CG (seed 0) give 52 / 36 / 12 % trivial queries,
# compositions and words; Charades-CG has 43 / 48 / 10 %.
MAX_SHARE = 0.03  # of the videos; a more frequent word or pair is not held out
WORD_SHARE, PAIR_SHARE = 0.15, 0.65  # of the test videos


def pairs_of(tokens: Tokens) -> set[Pair]:
    pairs: set[Pair] = set()
    for head, kind, preposition, dependent in relations(tokens):
        match kind:
            case "verb-object" | "verb-adverb":
                pairs.add(("v-n" if kind == "verb-object" else "v-adv", head, dependent))
            case "adjective-noun" | "noun-noun":
                pairs.add((f"{kind[0]}-n", dependent, head))
            case "verb-preposition-noun":
                pairs |= {("v-n", head, dependent), ("v-adv", head, preposition), ("p-n", preposition, dependent)}
            case "noun-preposition-noun":
                pairs.add(("p-n", preposition, dependent))
    return pairs


def novel_splits(vids: Sequence[str], parsed: Sequence[Tokens], test: float, seed: int) -> list[tuple[str, Label]]:
    """Return the split of each query (train, test, composition or word), and its novel pairs or words.

    `vids` and `parsed` are the queries' videos and tokens, `test` is the share of test videos. Raises `DatasetError` if
    nothing can be held out.
    """
    pairs = [pairs_of(tokens) for tokens in parsed]
    words = [{(token["pos"], token["lemma"]) for token in tokens if token["primitive"]} for tokens in parsed]
    held = _held_out(vids, pairs, words, test, seed)
    training = [place for place, vid in enumerate(vids) if vid not in held]
    seen_pairs = {pair for place in training for pair in pairs[place]}
    seen_words = {lemma for place in training for _, lemma in words[place]}
    splits: list[tuple[str, Label]] = []
    for vid, own_pairs, own_words in zip(vids, pairs, words, strict=True):
        new_words = sorted(word for word in own_words if word[1] not in seen_words)
        new_pairs = sorted(own_pairs - seen_pairs)
        split, label = TRAINING if vid not in held else "test", defaultdict[str, list[object]](list)
        if vid in held and new_words:
            split = "word"
            for pos, lemma in new_words:
                label[pos].append(lemma)
        elif vid in held and new_pairs and all(lemma in seen_words for _, *both in new_pairs for lemma in both):
            split = "composition"
            for kind, *both in new_pairs:
                label[kind].append(both)
        splits.append((split, dict(label)))
    for split in ("composition", "word"):
        if all(split != own for own, _ in splits):
            raise DatasetError(
                f"no query can be held out for split {split!r}: {counted(len(set(vids)), 'video')} are too few or too "
                "similar; raise --test, or leave out --novel"
            )
    return splits


def _held_out(
    vids: Sequence[str], pairs: Sequence[set[Pair]], words: Sequence[set[Word]], test: float, seed: int
) -> set[str]:
    with_pair: dict[Pair, set[str]] = defaultdict(set)
    with_word: dict[Word, set[str]] = defaultdict(set)
    with_lemma: dict[str, set[str]] = defaultdict(set)
    for vid, own_pairs, own_words in zip(vids, pairs, words, strict=True):
        for pair in own_pairs:
            with_pair[pair].add(vid)
        for word in own_words:
            with_word[word].add(vid)
            with_lemma[word[1]].add(vid)
    videos = len(set(vids))
    wanted, few = share_of(videos, test), max(1, int(MAX_SHARE * videos))
    held: set[str] = set()
    for word in _by_turns(with_word, seed):
        more = held | with_lemma[word[1]]
        if len(with_lemma[word[1]]) <= few and len(more) <= max(1, round(WORD_SHARE * wanted)):
            held = more
    most = len(held) + max(1, round(PAIR_SHARE * wanted))
    for pair in _by_turns(with_pair, seed):
        more = held | with_pair[pair]
        stay = all(with_lemma[lemma] - more for lemma in pair[1:])
        if stay and len(with_pair[pair]) <= few and len(more) <= most:
            held = more
    rest = in_order(set(vids) - held, seed)
    return held.union(rest[: max(0, wanted - len(held))])


def _by_turns(items: Iterable[Item], seed: int) -> Iterator[Item]:
    """Return the items, alternating between types, and within a type in an order that depends on the seed."""
    kinds: dict[str, dict[str, Item]] = {}
    for item in items:
        kinds.setdefault(item[0], {})[" ".join(item)] = item
    turns = zip_longest(*([kinds[kind][name] for name in in_order(kinds[kind], seed)] for kind in sorted(kinds)))
    return (item for item in chain.from_iterable(turns) if item is not None)
