"""What people see of predictions: the rows of `penumbra predict`, and pictures of frames, saliency and windows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from transformers.utils import logging

from penumbra.artifacts.charts import (
    GREY,
    HEAD,
    LINE,
    MARGIN,
    WIDTH,
    Drawing,
    Line,
    Panel,
    draw_panel,
    panels,
    photo,
    text,
)
from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import draft_of
from penumbra.tasks.features.decoders import COLUMNS, ROWS
from penumbra.tasks.grounding.families.base import SALIENCY_SPAN
from penumbra.tasks.grounding.prediction.grounder import Grounder, Grounding, Watched, checked

STRIP, SHOWN = 8, 3  # frames of a video, windows of a query
PANEL = 150
AXIS = WIDTH - MARGIN - 6  # pixels
CLOSE = "≈"
TOLERANCE = 0.01  # scores that differ from the best by less are marked: the run cannot tell the windows apart


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
        with draft_of(picture) as draft:
            draft.write_text(draw(video.name, watched, groundings).svg(), encoding="utf-8")
    return watched, groundings


def as_rows(groundings: Sequence[Grounding], most: int, windows: bool = False) -> Iterator[tuple[str, str, str, str]]:
    """Yield query (once), start, end and score of the best windows of each query, scores close to the best marked.

    A query whose moment is not in the video has no windows unless `windows` asks for them, and a line that says so.
    """
    for one in groundings:
        shown = one.windows[:most] if windows or not one.absence else ()
        if one.absence or not shown:
            yield "\n".join(filter(None, (one.query, one.absence))), "–", "–", "–"
        for place, window in enumerate(shown):
            query = "" if place or one.absence else one.query
            close = f" {CLOSE}" if place and one.windows[0].score - window.score < TOLERANCE else ""
            yield query, f"{window.start:.2f}", f"{window.end:.2f}", f"{window.score:.3f}{close}"


def draw(video: str, watched: Watched, groundings: Sequence[Grounding]) -> Drawing:
    """Return frames of the video, and for each query its saliency with the best window shaded, and the best windows."""
    body, width = [text(MARGIN, 18, video, room=AXIS, weight="600")], AXIS / STRIP
    height = width * ROWS / COLUMNS
    for slot in range(STRIP):
        x, middle = MARGIN + slot * width, (slot + 0.5) / STRIP * watched.duration
        second, frame = min(watched.frames, key=lambda kept: abs(kept[0] - middle))
        body.append(photo(x + 1, HEAD, width - 2, height, frame, f"the video at {second:.1f} s"))
        body.append(text(x + width / 2, HEAD + height + 14, f"{second:.1f} s", "middle", GREY))
    top, described = HEAD + height + 18, []
    for grounding in groundings:
        windows = ", ".join(f"{w.start:.1f} – {w.end:.1f} s ({w.score:.2f})" for w in grounding.windows[:SHOWN])
        windows = "; ".join(filter(None, (grounding.absence, windows)))
        described.append(f"{grounding.query}: {windows or 'no window'}")
        body.append(text(MARGIN, top + 15, f"“{grounding.query}”", room=AXIS, weight="600"))
        body.append(text(MARGIN, top + LINE + 15, windows or "no window", colour=GREY))
        top += 2 * LINE + 16
        if grounding.saliency:
            panel = _panel("saliency", {"saliency": grounding}, watched.duration)
            body += draw_panel(panel, 0, top - 16, WIDTH, PANEL)
            top += PANEL
    return Drawing(f"Moments in {video}", round(top), body, "; ".join(described))


def _panel(title: str, groundings: Mapping[str, Grounding], seconds: float) -> Panel:
    """Return the saliency of groundings by their labels, with the best window of the first shaded."""
    lines = [
        Line(label, [((clip + 0.5) * one.clip_length, value) for clip, value in enumerate(one.saliency)], style)
        for style, (label, one) in enumerate(groundings.items())
    ]
    best = [(window.start, window.end) for window in next(iter(groundings.values())).windows[:1]]
    return Panel(title, lines, 0, seconds, "s", best, least=SALIENCY_SPAN)


def saliency_by_text(groundings: Mapping[str, Grounding]) -> Drawing:
    """Return the saliency of a query, whose best window is shaded, and of its negatives, by their names."""
    labelled = {f"{name}: {one.query}": one for name, one in groundings.items()}
    panel = _panel("", labelled, next(iter(groundings.values())).duration)
    return panels("Saliency under the query and its negatives", [panel], columns=1, height=230, legend=True)
