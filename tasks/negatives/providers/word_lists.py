"""The words on offer to a hosted language model."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from penumbra.tasks.negatives.providers import MaskedQuery, SharedSettings, Slot, TrainingText
from penumbra.tasks.negatives.providers.answers import Answers
from penumbra.tasks.negatives.providers.kneser_ney import NOTHING, KneserNey, SlotScorer
from penumbra.tasks.negatives.providers.random import row_seed, uniform
from penumbra.tasks.text.wordnet import is_entailed

CELLS = 1 << 20  # scores computed at once: 8 MB a table
FEW = 2  # slots of a level that would be refused if all its words were entailed, as is likely with so few
FLATTEN = 0.75  # exponent of the contextual probability: below 1, so that lists vary

Class = tuple[str, str]  # primitive class and fine tag
Lists = list[tuple[str, ...]]  # the words on offer for each slot of a query's last level


class WordLists:
    """Draws short lists of dictionary words that a language model may choose from, at most `filling.options` a slot.

    They are drawn without replacement (Efraimidis & Spirakis 2006) with weights from the slot's context: a few words
    drawn uniformly from a dictionary of hundreds rarely contain one that fits. The draws depend on the seed, the query,
    the slot and the candidate's number only, so all providers are offered the same words.

    A slot of a level with few slots is not offered words that may be true of the moment, unless there are no others.

    The list of a question that `answers` has an answer to stays as it was, even if the dictionary has grown since.
    """

    def __init__(self, training: TrainingText, filling: SharedSettings, answers: Answers) -> None:
        self.language, self.dictionary = KneserNey.of(training.sentences()), training.dictionary
        self.count, self.seed, self.answers = filling.options, filling.seed, answers
        self._scorers: dict[Class, SlotScorer] = {}
        self._entailed: dict[tuple[Class, str], list[int]] = {}  # indices of words, by slot's class and word

    def name(self, query: MaskedQuery, candidate: int) -> str:
        """Return the digest of what a query's lists are drawn for."""
        slots = [[slot.token, slot.primitive, slot.tag, slot.word, slot.lemma] for slot in query.levels[-1]]
        texts = [token["text"] for token in query.tokens]
        content = [self.count, self.seed, query.qid, candidate, query.part, slots, texts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def draw(self, queries: Sequence[MaskedQuery], candidate: int) -> list[Lists]:
        """Return each query's lists, in the queries' order; a list is empty where there is no other word."""
        lists: list[Lists] = []
        places: dict[Class, list[tuple[int, int]]] = defaultdict(list)  # query and slot of each list to draw
        for i, query in enumerate(queries):
            slots = query.levels[-1]
            known = self.answers.get(f"offer {self.name(query, candidate)}") or ()  # of an answered question
            if known and all(
                slot.may_take(w, self.dictionary) for slot, words in zip(slots, known, strict=False) for w in words
            ):
                lists.append([tuple(words) for words in known])
                continue
            lists.append([()] * len(slots))
            for j, slot in enumerate(slots):
                places[slot.offered_class(self.dictionary)].append((i, j))
        for key, several in places.items():
            step = max(1, CELLS // max(1, len(self.dictionary.offer(*key).words)))
            for start in range(0, len(several), step):
                block = several[start : start + step]
                drawn = self._draw(key, [(queries[i], queries[i].levels[-1][j]) for i, j in block], candidate)
                for (i, j), words in zip(block, drawn, strict=True):
                    lists[i][j] = words
        return lists

    def _draw(self, key: Class, slots: list[tuple[MaskedQuery, Slot]], candidate: int) -> Lists:
        words = self.dictionary.offer(*key).words
        if not words:
            return [()] * len(slots)
        if key not in self._scorers:
            self._scorers[key] = SlotScorer(self.language, np.array(self.language.ids(words), dtype=np.int64))
        contexts = np.zeros((len(slots), 4), dtype=np.int64)  # the ids of the two words before a slot and after it
        for row, (query, slot) in enumerate(slots):
            ids = [1, 1, *self.language.ids(token["text"].lower() for token in query.tokens), 2, NOTHING]
            contexts[row] = [ids[slot.token + offset] for offset in (0, 1, 3, 4)]
        weights = self._scorers[key].score(*contexts.T) ** FLATTEN
        seeds = [row_seed(self.seed, query.qid, candidate, slot.token) for query, slot in slots]
        draws = uniform(np.array(seeds, dtype=np.uint64)[:, None], np.arange(len(words)))
        lists: Lists = []
        for (query, slot), row, draw in zip(slots, weights, draws, strict=True):
            row[list(slot.choice(self.dictionary)[1])] = 0.0
            if slot in query.levels[0] and len(query.levels[0]) <= FEW:
                known = key, slot.word.lower()
                if known not in self._entailed:
                    entailed = [i for i, w in enumerate(words) if is_entailed(w, slot.word, slot.primitive)]
                    self._entailed[known] = entailed
                if np.delete(row, self._entailed[known]).any():
                    row[self._entailed[known]] = 0.0
            allowed = np.flatnonzero(row > 0)
            order = allowed[np.argsort(-np.log1p(-draw[allowed]) / row[allowed], kind="stable")]
            index, number = query.part
            lists.append(tuple(words[i] for i in order[index::number][: self.count]))
        return lists
