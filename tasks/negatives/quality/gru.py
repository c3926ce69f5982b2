"""A small recurrent text classifier, the blind judge that is no bag of anything."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from penumbra.tasks.data.resampling import Floats, Ids
from penumbra.tasks.negatives.quality.texts import words_of

EPOCHS, BATCH, WIDTH, STEP = 4, 128, 64, 3e-3
PADDING, UNKNOWN = 0, 1


class RecurrentClassifier(nn.Module):
    """Embeds words, reads them in both directions, and gives one logit a text."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH, padding_idx=PADDING)
        self.read = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.decide = nn.Linear(2 * WIDTH, 1)

    def forward(self, words: Tensor) -> Tensor:
        """Word ids (texts, length) to logits (texts)."""
        states, _ = self.read(self.embed(words))
        states = states.masked_fill((words == PADDING)[..., None], -1e4)
        logits: Tensor = self.decide(states.amax(dim=1)).squeeze(1)
        return logits


def recurrent(texts: list[str], labels: Ids, seed: int) -> Callable[[Ids, Ids], Floats]:
    """A GRU for each fold, seeded, from training and test rows to scores; its vocabulary is the training texts' own."""
    split = [[*words_of(text), "</s>"] for text in texts]

    def predict(train: Ids, test: Ids) -> Floats:
        counts = Counter(word for i in train for word in split[i])
        index = {word: place for place, word in enumerate((w for w, n in sorted(counts.items()) if n > 1), 2)}
        rows = [torch.tensor([index.get(word, UNKNOWN) for word in words]) for words in split]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            classifier = RecurrentClassifier(len(index) + 2)
            _fit(classifier, [rows[i] for i in train], torch.tensor(labels[train], dtype=torch.float32))
        with torch.no_grad():
            batches = [_padded([rows[i] for i in test[at : at + 1024]]) for at in range(0, len(test), 1024)]
            return np.concatenate([classifier(batch).numpy() for batch in batches]).astype(np.float64)

    return predict


def _fit(classifier: RecurrentClassifier, rows: list[Tensor], labels: Tensor) -> None:
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=STEP)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(rows)), BATCH):
            loss = nn.functional.binary_cross_entropy_with_logits(
                classifier(_padded([rows[i] for i in batch.tolist()])), labels[batch]
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _padded(rows: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING)
