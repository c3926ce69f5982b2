"""Pictures of predictions: frames of the video, saliency and windows; a query and its negatives."""

from collections.abc import Mapping, Sequence

from penumbra.artifacts.charts import (
    COLOURS,
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
from penumbra.tasks.features.frames import COLUMNS, ROWS
from penumbra.tasks.grounding.families.base import SALIENCY_SPAN
from penumbra.tasks.grounding.prediction.grounder import Grounding, Watched, Window

STRIP, SHOWN, OF_WINDOW = 8, 3, 5  # frames of a video, windows of a query, frames of a window
PANEL = 150
AXIS = WIDTH - MARGIN - 6  # pixels


def draw(video: str, watched: Watched, groundings: Sequence[Grounding]) -> Drawing:
    """Return frames of the video, and for each query its saliency with the best window shaded, and the best windows."""
    middles = [(slot + 0.5) / STRIP * watched.duration for slot in range(STRIP)]
    frames = [min(watched.frames, key=lambda kept: abs(kept[0] - middle)) for middle in middles]
    body = [text(MARGIN, 18, video, room=AXIS, weight="600"), *_photos(frames, HEAD, STRIP)]
    top, described = HEAD + AXIS / STRIP * ROWS / COLUMNS + 18, []
    for grounding in groundings:
        windows = ", ".join(f"{w.start:.1f} – {w.end:.1f} s ({w.score:.2f})" for w in grounding.windows[:SHOWN])
        windows = "; ".join(filter(None, (grounding.absence, windows)))
        described.append(f"{grounding.query}: {windows or 'no window'}")
        body.append(text(MARGIN, top + 15, f"“{grounding.query}”", room=AXIS, weight="600"))
        body.append(text(MARGIN, top + LINE + 15, windows or "no window", colour=GREY))
        top += 2 * LINE + 16
        if grounding.saliency:
            panel = _panel("saliency", [Line("saliency", _points(grounding))], grounding, watched.duration)
            body += draw_panel(panel, 0, top - 16, WIDTH, PANEL)
            top += PANEL
    return Drawing(f"Moments in {video}", WIDTH, round(top), body, "; ".join(described))


def _photos(frames: Sequence[tuple[float, bytes]], top: float, columns: int) -> list[str]:
    """Return frames side by side, with the second of each below it."""
    width = AXIS / columns
    height = width * ROWS / COLUMNS
    body = []
    for place, (second, frame) in enumerate(frames):
        x = MARGIN + place * width
        body.append(photo(x + 1, top, width - 2, height, frame, f"the video at {second:.1f} s"))
        body.append(text(x + width / 2, top + height + 14, f"{second:.1f} s", "middle", GREY))
    return body


def _points(grounding: Grounding) -> list[tuple[float, float]]:
    return [((clip + 0.5) * grounding.clip_length, value) for clip, value in enumerate(grounding.saliency)]


def _panel(title: str, lines: Sequence[Line], grounding: Grounding, seconds: float) -> Panel:
    best = [(window.start, window.end) for window in grounding.windows[:1]]
    return Panel(title, lines, 0, seconds, "s", best, shade=COLOURS[0], least=SALIENCY_SPAN)


def saliency_by_text(groundings: Mapping[str, Grounding]) -> Drawing:
    """Return the saliency of a query, whose best window is shaded, and of its negatives, by their names."""
    first = next(iter(groundings.values()))
    lines = [Line(f"{name}: {one.query}", _points(one), style) for style, (name, one) in enumerate(groundings.items())]
    panel = _panel("", lines, first, first.duration)
    return panels("Saliency under the query and its negatives", [panel], columns=1, height=230, legend=True)


def window_frames(watched: Watched, window: Window) -> Drawing:
    """Return evenly spread frames of a window, or the frame nearest to it."""
    middle = (window.start + window.end) / 2
    within = [kept for kept in watched.frames if window.start <= kept[0] <= window.end]
    within = within or [min(watched.frames, key=lambda kept: abs(kept[0] - middle))]
    step = max(1, -(-len(within) // OF_WINDOW))
    shown = within[(len(within) - 1) % step // 2 :: step]
    height = round(AXIS / OF_WINDOW * ROWS / COLUMNS)
    title = f"Frames of {window.start:.1f} to {window.end:.1f} s"
    seconds = ", ".join(f"{second:.1f} s" for second, _ in shown)
    return Drawing(title, WIDTH, height + 26, _photos(shown, 4, OF_WINDOW), seconds)
