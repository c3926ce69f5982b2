"""What `penumbra predict` does: moments of queries in a video file, as rows, as JSON, and as a picture."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from transformers.utils import logging

from penumbra.tasks.grounding.prediction.grounder import Grounder, Grounding, PredictionError, checked
from penumbra.tasks.grounding.prediction.picture import draw
from penumbra.tasks.grounding.prediction.watching import Watched

PICTURE = ".svg"


def predict(
    video: Path, queries: Sequence[str], run: str, dataset: str | None, picture: Path | None
) -> tuple[Watched, list[Grounding]]:
    """Find the queries' moments, and draw them where a file is named for it.

    Raises `PredictionError` where that file is no .svg or can't be written; see `Grounder` for the rest.
    """
    checked(queries)
    if picture and picture.suffix.lower() != PICTURE:
        raise PredictionError(f"--output {picture}: pictures are SVG, which any browser shows: name a {PICTURE} file")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights, which takes a moment
    grounder = Grounder.of_run(run, dataset)
    watched = grounder.watch(video)
    found = grounder.ask(watched, queries)
    if picture:
        try:
            picture.write_text(draw(video.name, watched, found).svg(), encoding="utf-8")
        except OSError as error:
            raise PredictionError(f"--output {picture} can't be written ({error.strerror})") from None
    return watched, found


def as_json(found: Sequence[Grounding]) -> str:
    """A list with an object a query: query, windows (start, end, score), saliency, clip_length, duration.

    Numbers have six decimals: more would be the noise of float32.
    """
    exact = json.dumps([asdict(one) for one in found])
    return json.dumps(json.loads(exact, parse_float=lambda digits: round(float(digits), 6)), ensure_ascii=False)


def as_rows(found: Sequence[Grounding], most: int) -> Iterator[tuple[str, str, str, str]]:
    """Query (once), start, end and score of the best windows of each."""
    for one in found:
        for place, window in enumerate(one.windows[:most]):
            yield ("" if place else one.query, f"{window.start:.2f}", f"{window.end:.2f}", f"{window.score:.3f}")
