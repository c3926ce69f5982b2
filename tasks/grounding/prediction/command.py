"""The functions of `penumbra predict`: moments of queries in a video file, as rows, as JSON, and as a picture."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from transformers.utils import logging

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.grounding.prediction.grounder import Grounder, Grounding, Watched, checked
from penumbra.tasks.grounding.prediction.pictures import draw

CLOSE, TOLERANCE = "≈", 0.01  # the mark of scores that differ from the best by less


def predict(
    video: Path, queries: Sequence[str], grounder_of: Callable[[], Grounder], picture: Path | None
) -> tuple[Watched, list[Grounding]]:
    """Return the queries' moments by a grounder, and draw them into a file if one is named.

    Raise `PenumbraError` if that file is no .svg or can't be written; see `Grounder` for other faults.
    """
    checked(queries)
    if picture and picture.suffix.lower() != ".svg":
        raise PenumbraError(f"--output {picture}: pictures are SVG, which any browser shows: name a .svg file")
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights, which takes a moment
    grounder = grounder_of()
    watched = grounder.watch(video)
    groundings = grounder.ask(watched, queries)
    if picture:
        try:
            picture.write_text(draw(video.name, watched, groundings).svg(), encoding="utf-8")
        except OSError as error:
            raise PenumbraError(f"--output {picture} can't be written ({error.strerror})") from None
    return watched, groundings


def as_json(groundings: Sequence[Grounding]) -> str:
    """Return a list of objects (query, windows, saliency, clip_length, duration) with six decimals."""
    exact = json.dumps([asdict(one) for one in groundings])
    return json.dumps(json.loads(exact, parse_float=lambda digits: round(float(digits), 6)), ensure_ascii=False)


def as_rows(groundings: Sequence[Grounding], most: int, windows: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield query (once), start, end and score of the best windows of each query, scores close to the best marked.

    A query whose moment is not in the video has no windows unless `windows` asks for them, and a line that says so.
    """
    for one in groundings:
        if one.absence:
            yield f"{one.query}\n{one.absence}", "–", "–", "–"
        shown = one.windows[:most] if windows or not one.absence else ()
        for place, window in enumerate(shown):
            mark = f" {CLOSE}" if place and one.windows[0].score - window.score < TOLERANCE else ""
            score = f"{window.score:.3f}{mark}"
            yield ("" if place or one.absence else one.query, f"{window.start:.2f}", f"{window.end:.2f}", score)
        if not one.windows and not one.absence:
            yield one.query, "–", "–", "–"
