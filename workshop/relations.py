"""Write the relations of captions that Penumbra ships: which words go with which in what people say of videos.

    python -m workshop.relations CAPTIONS [--output tasks/text/relations.txt.gz]

CAPTIONS is ActivityNet-CG's `train.json`, see `workshop.captions`; the tagger that ships parses its sentences. A line
has the relations with the same head, kind and preposition, all dependents at its end: `stir verb-object - egg soup`.
"""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import typer

from penumbra.tasks.text.relations import CAPTIONS, relations
from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline


def main(captions: Path, output: Path = CAPTIONS) -> None:
    videos = json.loads(captions.read_text()).values()
    texts = sorted({" ".join(text.split()) for video in videos for text in video["sentences"]})
    dependents = defaultdict[tuple[str, ...], set[str]](set)
    for doc in load_pipeline(SHIPPED_PIPELINE).pipe(texts):
        tokens = [{"lemma": t.lemma_.lower(), "dep": t.dep_, "head": t.head.i, "pos": t.pos_} for t in doc]
        for head, kind, preposition, dependent in relations(tokens):
            if f"{head}{preposition}{dependent}".isalpha():
                dependents[head, kind, preposition or "-"].add(dependent)
    lines = [" ".join((*first, *sorted(words))) for first, words in sorted(dependents.items())]
    output.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    typer.run(main)
