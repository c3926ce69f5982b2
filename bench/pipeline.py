"""Measure `build-negatives` and the libraries that it needs, and print the times as JSON.

python -m bench.pipeline [DATASET]

`pure` are the times of spaCy and SentenceBERT alone over the distinct texts; `overhead_seconds` is everything else.
"""

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from penumbra.artifacts.locations import PROJECT, data_folder

SHARED = PROJECT.parent / "shared" / "data"
LATER = ("rejected", "in_video_negatives")


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(dataset: str) -> dict[str, object]:
    """Build a data set's negatives twice in an empty store, then time the libraries alone."""
    from prefect.testing.utilities import prefect_test_harness

    from penumbra.artifacts.store import Store
    from penumbra.flows.local_run import run_flow
    from penumbra.tasks.text.embeddings import Encoding, encode
    from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline

    with prefect_test_harness(server_startup_timeout=120):
        first = timed(lambda: run_flow("build-negatives", dataset, {}))
        second = timed(lambda: run_flow("build-negatives", dataset, {}))
    store = Store()
    stages = {m.stage: m.seconds for m in store.find(dataset)}
    columns = {"annotations": ["query"], "negatives": ["negative"], "embeddings": ["text"]}
    texts = {stage: store.table(store.newest(dataset, stage), names) for stage, names in columns.items()}
    queries = sorted(set(texts["annotations"]["query"].to_pylist()))
    sentences = sorted({*texts["embeddings"]["text"].to_pylist(), *texts["negatives"]["negative"].to_pylist()})
    nlp = load_pipeline(SHIPPED_PIPELINE)
    spacy_pure = timed(lambda: list(nlp.pipe(queries)))
    encode_pure = timed(lambda: encode(sentences, Encoding()))
    to_negatives = sum(seconds for stage, seconds in stages.items() if stage not in LATER)
    return {
        "dataset": dataset,
        "training_queries": store.manifest(store.newest(dataset, "masks")).taken,
        "negatives": len(texts["negatives"]),
        "seconds": round(first, 1),
        "seconds_to_negatives": round(to_negatives, 1),
        "stage_seconds": stages,
        "pure": {
            "spacy_pipe_seconds": round(spacy_pure, 1),
            "distinct_queries": len(queries),
            "sentencebert_encode_seconds": round(encode_pure, 1),
            "distinct_texts": len(sentences),
        },
        "overhead_seconds": round(to_negatives - spacy_pure - encode_pure, 1),
        "ratio_to_pure": round(to_negatives / (spacy_pure + encode_pure), 2),
        "second_run_seconds": round(second, 2),
        "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "cores": os.cpu_count(),
    }


def print_figures(measure: Callable[[str], dict[str, object]]) -> None:
    """Measure the data set that the command line names, in an empty store."""
    if not (data_folder() / "charades-cg").is_dir() and SHARED.is_dir():
        os.environ["PENUMBRA_DATA"] = str(SHARED)
    default = "charades-cg" if (data_folder() / "charades-cg").is_dir() else "scenes"
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PENUMBRA_ARTIFACTS=str(Path(folder) / "artifacts"), PREFECT_HOME=str(Path(folder) / "home"))
        os.environ.update(PREFECT_API_URL="", PREFECT_LOGGING_LEVEL="WARNING")
        sys.stdout.write(json.dumps(measure(sys.argv[1] if len(sys.argv) > 1 else default), indent=1) + "\n")


if __name__ == "__main__":
    print_figures(measure)
