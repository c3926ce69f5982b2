"""Pictures of predictions: frames of the video, saliency and windows on the same seconds; a query and its negatives."""

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
    Spans,
    box,
    draw_panel,
    panels,
    photo,
    spans,
    text,
)
from penumbra.tasks.features.frames import COLUMNS, ROWS
from penumbra.tasks.grounding.families.base import SALIENCY_SPAN
from penumbra.tasks.grounding.prediction.grounder import Grounding, Window
from penumbra.tasks.grounding.prediction.watching import Watched

IN_STRIP = 8
SHOWN = 3  # windows a query
OF_WINDOW = 5  # frames
PANEL = 130
AXIS = WIDTH - MARGIN - 6  # pixels


def draw(video: str, watched: Watched, found: Sequence[Grounding]) -> Drawing:
    """Frames once, then for each query its saliency, the best window shaded, and the best windows."""
    width = AXIS / IN_STRIP
    height = width * ROWS / COLUMNS
    body = [text(MARGIN, 18, video, room=AXIS, weight="600"), *_strip(watched, width, height)]
    top = HEAD + height + 18
    for grounding in found:
        body += _query(grounding, top, watched.duration)
        top += HEAD + (PANEL if grounding.saliency else 0) + LINE * min(SHOWN, len(grounding.windows)) + 16
    told = "; ".join(f"{one.query}: {_told(one)}" for one in found)
    return Drawing(f"Moments in {video}", WIDTH, round(top), body, told)


def _strip(watched: Watched, width: float, height: float) -> list[str]:
    """The frame nearest to the middle of each slot, and the second that it is of."""
    body = []
    for slot in range(IN_STRIP):
        middle = (slot + 0.5) / IN_STRIP * watched.duration
        second, frame = min(watched.frames, key=lambda kept: abs(kept[0] - middle))
        x = MARGIN + slot * width
        shown = min(second, watched.duration)
        body.append(photo(x + 1, HEAD, width - 2, height, frame, f"the video at {shown:.1f} s"))
        body.append(text(x + width / 2, HEAD + height + 14, f"{shown:.1f} s", "middle", GREY))
    return body


def _query(found: Grounding, top: float, seconds: float) -> list[str]:
    best = [(window.start, window.end) for window in found.windows[:1]]
    body = [text(MARGIN, top + 15, f"“{found.query}”", room=AXIS, weight="600")]
    top += HEAD
    if found.saliency:
        lines = [Line("saliency", _points(found))]
        panel = Panel("saliency", lines, 0, seconds, "s", best, shade=COLOURS[0], least=SALIENCY_SPAN)
        body += draw_panel(panel, 0, top - 8, WIDTH, PANEL)
        top += PANEL
    for place, window in enumerate(found.windows[:SHOWN]):
        y = top + LINE * place
        start, end = (MARGIN + AXIS * min(edge / seconds, 1.0) for edge in (window.start, window.end))
        body.append(text(MARGIN - 8, y + LINE / 2 + 4, f"{window.score:.2f}", "end", GREY))
        body.append(box(start, y + 3, max(2.0, end - start), LINE - 6, COLOURS[0], 0.45 if place else 1.0))
        label = f"{window.start:.1f} – {window.end:.1f} s"
        after = end + 6 < MARGIN + AXIS - 90
        body.append(text(end + 6 if after else start - 6, y + LINE / 2 + 4, label, "start" if after else "end"))
    return body


def _points(found: Grounding) -> list[tuple[float, float]]:
    return [((clip + 0.5) * found.clip_length, value) for clip, value in enumerate(found.saliency)]


def _told(found: Grounding) -> str:
    windows = (f"{window.start:.1f} to {window.end:.1f} s ({window.score:.2f})" for window in found.windows[:SHOWN])
    return ", ".join(windows) or "no window"


def saliency_beside(found: Mapping[str, Grounding]) -> Drawing:
    """Saliency under a query, whose best window is shaded, and under its negatives, by what each is called."""
    first = next(iter(found.values()))
    lines = [Line(f"{name}: {one.query}", _points(one), style) for style, (name, one) in enumerate(found.items())]
    best = [(window.start, window.end) for window in first.windows[:1]]
    panel = Panel("", lines, 0, first.duration, "s", best, shade=COLOURS[0], least=SALIENCY_SPAN)
    return panels("Saliency under the query and its negatives", [panel], columns=1, height=230, legend=True)


def windows_beside(found: Mapping[str, Grounding]) -> Drawing:
    """The best window under a query and under each of its negatives, with its score."""
    rows = [
        Spans(name, [(window.start, window.end)], f"{window.score:.2f}", COLOURS[style % len(COLOURS)])
        for style, (name, one) in enumerate(found.items())
        for window in one.windows[:1]
    ]
    return spans("The best window under each", rows, next(iter(found.values())).duration)


def window_frames(watched: Watched, window: Window) -> Drawing:
    """Frames of a window, evenly spread; the one nearest to it where none was kept of it."""
    middle = (window.start + window.end) / 2
    within = [kept for kept in watched.frames if window.start <= kept[0] <= window.end]
    within = within or [min(watched.frames, key=lambda kept: abs(kept[0] - middle))]
    step = max(1, -(-len(within) // OF_WINDOW))
    shown = within[(len(within) - 1) % step // 2 :: step]
    width = AXIS / OF_WINDOW
    height = width * ROWS / COLUMNS
    body = []
    for place, (second, frame) in enumerate(shown):
        x = MARGIN + place * width
        body.append(photo(x + 1, 4, width - 2, height, frame, f"the video at {second:.1f} s"))
        body.append(text(x + width / 2, height + 18, f"{second:.1f} s", "middle", GREY))
    title = f"Frames of {window.start:.1f} to {window.end:.1f} s"
    return Drawing(title, WIDTH, round(height) + 26, body, ", ".join(f"{second:.1f} s" for second, _ in shown))
