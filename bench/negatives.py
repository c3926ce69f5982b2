"""`make bench`: how long the choice of negatives takes with 8 candidates a level, and SentenceBERT's share of it.

python -m bench.negatives [DATASET]      default: charades-cg where its files are, else scenes
"""

import time
from collections.abc import Sequence
from unittest.mock import patch

from bench.pipeline import print_figures

CANDIDATES = 8


def measure(dataset: str) -> dict[str, object]:
    """Build negatives in an empty store; encoding is timed where the choice calls it."""
    from prefect.testing.utilities import prefect_test_harness

    from penumbra.artifacts.store import Store
    from penumbra.flows.local_run import run_flow
    from penumbra.tasks.negatives import selection as negatives
    from penumbra.tasks.text.embeddings import Encoding, Vectors, encode

    seconds, texts = [0.0], [0]

    def timed(some: Sequence[str], encoding: Encoding) -> Vectors:
        start = time.perf_counter()
        vectors = encode(some, encoding)
        seconds[0] += time.perf_counter() - start
        texts[0] += len(some)
        return vectors

    with prefect_test_harness(server_startup_timeout=120), patch.object(negatives, "encode", timed):
        run_flow("build-negatives", dataset, {"filling": {"candidates": CANDIDATES}, "judging": {"judge": False}})
    store = Store()
    fills, chosen = (store.manifest(store.newest(dataset, stage)) for stage in ("fills", "negatives"))
    return {
        "dataset": dataset,
        "candidates_a_level": CANDIDATES,
        "fills_seconds": round(fills.seconds, 1),
        "negatives": chosen.kept,
        "rejected": chosen.taken - chosen.kept,
        "filter_and_selection_seconds": round(chosen.seconds, 1),
        "texts_encoded": texts[0],
        "sentencebert_seconds": round(seconds[0], 1),
        "sentencebert_share": round(seconds[0] / chosen.seconds, 2),
    }


if __name__ == "__main__":
    print_figures(measure)
