"""What a row must be: the table's row of a query, or the reason why it can't be used."""

import re
from typing import Any

from penumbra.tasks.data.dataset import RawRow
from penumbra.tasks.data.english import foreign

MAX_WORDS = 256
MASK = "<mask>"  # stands in a masked query, and so in no query
LARGEST = 1e9  # seconds or clips: no video is longer
SAFE_VID = re.compile(r"[^/\\\x00-\x1f]{1,200}\Z")


def check_query(query: Any) -> str:
    """Why a query can't be used, or ''."""
    if not isinstance(query, str) or not query.strip():
        return "query is empty"
    if not _is_text(query):
        return "query is no valid Unicode text"
    letters = [c for c in query if c.isalpha()]
    if not letters:
        return "query has no letter"
    if sum(c.isascii() for c in letters) < 0.5 * len(letters):
        return "query is not written in Latin letters"
    if len(query.split()) > MAX_WORDS:
        return f"query is longer than {MAX_WORDS} words"
    return "query contains <mask>" if MASK in query else ""


def clean_windows(windows: Any, duration: float) -> tuple[list[list[float]], str, str]:
    """The windows clipped to the video, why they can't be used (or ''), and what was changed (or '')."""
    if not isinstance(windows, list):
        return [], "windows are no list", ""
    kept, note = [], ""
    for window in windows:
        if not isinstance(window, list) or len(window) != 2 or not all(_is_number(edge) for edge in window):
            return [], "window is not two finite numbers", ""
        start, end = float(window[0]), float(window[1])
        if start < 0:
            return [], "window starts before 0", ""
        if end < start:
            return [], "window ends before it begins", ""
        if start >= duration:
            return [], "window starts after the video's end", ""
        if end > duration:
            end, note = duration, "window clipped to the video's end"
        if end == start:
            return [], "window is empty", ""
        kept.append([start, end])
    return kept, "", note


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def clean_saliency(clips: Any, scores: Any) -> tuple[list[dict[str, Any]] | None, str]:
    """QVHighlights' annotator scores of each relevant clip, and why they can't be used (or '')."""
    if clips is None and scores is None:
        return None, ""
    if not isinstance(clips, list) or not isinstance(scores, list) or len(clips) != len(scores):
        return None, "saliency scores and clips differ in number"
    whole = all(type(clip) is int and 0 <= clip < LARGEST for clip in clips)
    fits = all(isinstance(s, list) and all(type(n) is int and 0 <= n < 128 for n in s) for s in scores)
    if not whole or not fits:
        return None, "saliency is no list of small whole numbers"
    return [{"clip": clip, "scores": score} for clip, score in zip(clips, scores, strict=True)], ""


def clean_row(raw: RawRow, split: str, seen: set[str], english: bool) -> tuple[dict[str, Any], str, list[str]]:
    """A row of the table, why it is rejected (or ''), and what was changed in it.

    `seen` holds the qids met so far; `english` says that a query of another language is rejected.
    """
    notes = []
    reason = raw.fault or check_query(raw.query)
    if not reason and english and (language := foreign(raw.query)):
        reason = f"query is not in English, but in {language}"
    if not reason and (not raw.qid or not _is_text(raw.qid)):
        reason = "qid is empty or no text"
    if not reason and raw.qid in seen:
        reason = "qid occurs twice"
    if not reason and not (_is_text(raw.vid) and SAFE_VID.match(raw.vid) and ".." not in raw.vid):
        reason = "video id is no safe file name"
    if not reason and not (_is_number(raw.duration) and raw.duration > 0):
        reason = "duration is not a positive number"
    windows: list[list[float]] = []
    if not reason:
        windows, reason, note = clean_windows(raw.windows, float(raw.duration))
        notes += [note] if note else []
        if not reason and raw.labelled and not windows:
            reason = "query has no window"
    if not reason and not all(_is_text(text) for label in raw.novel for text in (label["type"], *label["words"])):
        reason = "novel label is no text"
    saliency = None
    if not reason:
        saliency, reason = clean_saliency(*raw.saliency)
    if reason:
        return {}, reason, []
    seen.add(raw.qid)
    query = raw.query.strip()
    notes += ["blanks around the query removed"] if query != raw.query else []
    row = {
        "qid": raw.qid,
        "vid": raw.vid,
        "split": split,
        "query": query,
        "duration": float(raw.duration),
        "windows": windows,
        "novel": raw.novel,
        "saliency": saliency,
    }
    return row, "", notes
