"""Stage `annotations`: every data set's own files become one table, and every unusable row a stated reason.

Three formats are read: the Compositional-Temporal-Grounding JSON (Charades-CG, ActivityNet-CG), the JSON lines of
the Moment-DETR family (Charades-STA, QVHighlights, TACoS, anyone's own) and SHINE's JSON lines. A row that can't
be used is rejected; a file that is no data set stops the run. A video's queries always share a part, so that later
stages can compare the queries of a video without looking further.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from prefect import task
from pydantic import BaseModel, Field

from artifacts.manifest import Artifact, Part, Work, file_digest, rejection
from artifacts.schemas import table_of
from artifacts.settings import data_folder
from tasks.stage import run_stage

STAGE = "annotations"
VERSION = 1
ROWS_A_PART = 4096
MAX_WORDS = 256
MASK = "<mask>"
LARGEST = 1e9  # seconds or clips: no video is longer
LONGEST_NUMBER = 300  # digits
CG_KEYS = {"sentences", "timestamps", "duration"}
CG_FILES = {
    "train": "train.json",
    "test": "test_trivial.json",
    "composition": "novel_composition.json",
    "word": "novel_word.json",
}
SHIPPED = Path(__file__).parent / "scenes" / "data"
SAFE_VID = re.compile(r"[^/\\\x00-\x1f]{1,200}\Z")


class DatasetError(ValueError):
    """A data set, or one of its files, can't be used at all; the message names it and the remedy."""


class Dataset(BaseModel):
    """Which data set to read."""

    name: str = Field(description="Name of the data set: the first folder below the artifacts' root.",
                      pattern=r"^[a-z0-9][a-z0-9._-]*$")  # fmt: skip
    folder: str | None = Field(
        None, description="Folder with the annotation files. Default: the folder of this name below PENUMBRA_DATA."
    )
    files: dict[str, str] = Field(
        {},
        description="File of each split, relative to the folder, as {'train': 'train.json', …}. "
        "Default: what lies in the folder under the usual names.",
    )

    def location(self) -> Path:
        """The folder that holds the files; the shipped sample's own for `scenes`."""
        if self.folder:
            return Path(self.folder).expanduser()
        own = data_folder() / self.name
        return SHIPPED if self.name == "scenes" and not own.is_dir() else own

    def split_files(self) -> dict[str, Path]:
        """Each split's file; raises `DatasetError` where one is missing or none is known."""
        folder = self.location()
        if not folder.is_dir():
            raise DatasetError(
                f"no folder {folder} for data set {self.name}: set PENUMBRA_DATA, or run `penumbra fetch {self.name}`"
            )
        names = self.files or _usual_files(folder)
        if not names:
            raise DatasetError(f"{folder} holds no train.json and no *train*.jsonl: name its files with dataset.files")
        paths = {split: folder / name for split, name in names.items()}
        for split, path in paths.items():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise DatasetError(f"file {path} of split {split} lies outside {folder}: name files inside it")
            if not path.is_file():
                raise DatasetError(f"no file {path} for split {split}: run `penumbra fetch {self.name}` or name it")
        return paths


def _usual_files(folder: Path) -> dict[str, str]:
    if (folder / CG_FILES["train"]).is_file():
        return {split: name for split, name in CG_FILES.items() if (folder / name).is_file()}
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for split in ("train", "val", "test"):
            if split in path.stem.lower().replace("-", "_").split("_"):
                found.setdefault(split, path.name)
    return found


@dataclass
class RawRow:
    """One query as its file has it, before anything is checked; `fault` is set where it can't even be read."""

    qid: str
    vid: Any = ""
    query: Any = ""
    duration: Any = None
    windows: Any = None
    novel: list[dict[str, Any]] = field(default_factory=list)
    saliency: tuple[Any, Any] = (None, None)
    fault: str = ""


# -- the files ---------------------------------------------------------------------------------------------------


def read_rows(path: Path, split: str) -> Iterator[RawRow]:
    """Yield the queries of a file in its order; raises `DatasetError` where it is no data set."""
    try:
        reader = _read_json_lines if path.suffix == ".jsonl" else _read_compositional
        rows = reader(path, split)
        first = next(rows, None)
        if first is None:
            raise DatasetError(f"{path} holds no query: is it the right file?")
        yield first
        yield from rows
    except OSError as error:
        raise DatasetError(f"{path} can't be read ({error.strerror}): check its permissions") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text (byte {error.start}): convert it or fetch it again") from None


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the members of a JSON object one by one, so that a repeated key is seen and memory stays small."""
    text, decoder = path.read_text(encoding="utf-8-sig"), json.JSONDecoder(parse_int=_whole_number)
    space = re.compile(r"[ \t\r\n]*")

    def skip(position: int) -> int:
        match = space.match(text, position)
        return match.end() if match else position

    def expect(position: int, wanted: str) -> str:
        if text[position : position + 1] not in tuple(wanted):
            raise json.JSONDecodeError(f"expected one of {wanted}", text, position)
        return text[position]

    try:
        position = skip(0)
        expect(position, "{")
        position = skip(position + 1)
        if text[position : position + 1] == "}":
            return
        while True:
            expect(position, '"')
            key, position = decoder.raw_decode(text, position)
            position = skip(position)
            expect(position, ":")
            value, position = decoder.raw_decode(text, skip(position + 1))
            yield key, value
            position = skip(position)
            if expect(position, ",}") == "}":
                if text[position + 1 :].strip():
                    raise json.JSONDecodeError("more text after the object", text, position + 1)
                return
            position = skip(position + 1)
    except json.JSONDecodeError as error:
        raise DatasetError(
            f"{path} is not a JSON object of videos (line {error.lineno}: {error.msg}): fetch it again"
        ) from None
    except RecursionError:
        raise DatasetError(f"{path} is nested too deeply for a data set: fetch it again") from None


def _whole_number(digits: str) -> float:
    """JSON knows integers of any length; no video does."""
    return int(digits) if len(digits) < LONGEST_NUMBER else math.inf


def _read_compositional(path: Path, split: str) -> Iterator[RawRow]:
    good: set[str] = set()
    for vid, video in _members(path):
        lacking = sorted(CG_KEYS - (video.keys() if isinstance(video, dict) else set()))
        if lacking and not good:
            raise DatasetError(
                f"{path}: entry {vid!r} lacks {', '.join(lacking)}: this is no Compositional-Temporal-Grounding file; "
                "name the right one with dataset.files"
            )
        if lacking:
            yield RawRow(f"{vid}_{split}_0", vid, fault=f"video lacks {', '.join(lacking)}")
            continue
        repeated = "video id occurs twice in the file" if vid in good else ""
        good.add(vid)
        sentences, timestamps = video["sentences"], video["timestamps"]
        if not isinstance(sentences, list) or not isinstance(timestamps, list):
            yield RawRow(f"{vid}_{split}_0", vid, fault="sentences or timestamps are no list")
            continue
        labels = video.get("novels") or video.get("news")
        labels = labels if isinstance(labels, list) else []
        fault = "" if len(sentences) == len(timestamps) else "sentences and timestamps differ in number"
        for i in range(max(len(sentences), len(timestamps))):
            yield RawRow(
                qid=f"{vid}_{split}_{i}",
                vid=vid,
                query=sentences[i] if i < len(sentences) else "",
                duration=video["duration"],
                windows=[timestamps[i]] if i < len(timestamps) else [],
                novel=_novel_labels(labels[i]) if i < len(labels) else [],
                fault=repeated or fault,
            )


def _novel_labels(labels: Any) -> list[dict[str, Any]]:
    """{'v-n': [['put', 'cup']]} or {'NOUN': ['cup']} as rows of type and words."""
    found = []
    for kind, entries in labels.items() if isinstance(labels, dict) else ():
        for entry in entries if isinstance(entries, list) else [entries]:
            found.append(
                {"type": str(kind), "words": [str(w) for w in (entry if isinstance(entry, list) else [entry])]}
            )
    return found


def _read_json_lines(path: Path, split: str) -> Iterator[RawRow]:
    """Moment-DETR's and SHINE's rows: qid, query, vid, duration, relevant_windows."""
    good = False
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{path.name}:{number}"
            try:
                row = json.loads(line, parse_int=_whole_number)
            except (json.JSONDecodeError, RecursionError):
                if not good:
                    raise DatasetError(
                        f"{path} line {number} is not JSON: fetch it again, or name a file of JSON lines"
                    ) from None
                yield RawRow(place, fault="line is not JSON")
                continue
            if not isinstance(row, dict) or not {"qid", "query", "vid"} <= row.keys():
                if not good:
                    raise DatasetError(
                        f"{path} line {number} lacks qid, query or vid: this is no grounding data set; name another"
                    )
                yield RawRow(place, fault="row lacks qid, query or vid")
                continue
            good = True
            yield RawRow(
                qid="" if row["qid"] is None else str(row["qid"]).strip(),
                vid=row["vid"],
                query=row["query"],
                duration=row.get("duration"),
                windows=row.get("relevant_windows", []),
                saliency=(row.get("relevant_clip_ids"), row.get("saliency_scores")),
            )


# -- the rows ----------------------------------------------------------------------------------------------------


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


def clean_row(raw: RawRow, split: str, seen: set[str], labelled: bool = True) -> tuple[dict[str, Any], str, list[str]]:
    """A row of the table, why it is rejected (or ''), and what was changed in it.

    `seen` holds the qids met so far; `labelled` says whether the split must have windows (a hidden test split
    has none).
    """
    notes = []
    reason = raw.fault or check_query(raw.query)
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
        if not reason and labelled and not windows:
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


def make_part(rows: Iterable[tuple[RawRow, dict[str, Any], str, list[str]]]) -> Part:
    """One part: the usable rows, and the others with their reasons."""
    kept, rejected, notes = [], [], Counter[str]()
    for raw, row, reason, changes in rows:
        if reason:
            rejected.append(rejection(raw.qid, STAGE, reason, raw.query))
        else:
            kept.append(row)
            notes.update(changes)
    return Part(table_of(STAGE, kept), len(kept) + len(rejected), len(kept), rejected, notes)


def _by_video(rows: Iterable[RawRow]) -> Iterator[RawRow]:
    """JSON lines may mix videos: bring a video's rows together, in order of first appearance."""
    videos: dict[str, list[RawRow]] = {}
    for row in rows:
        videos.setdefault(str(row.vid), []).append(row)
    return chain.from_iterable(videos.values())


def parts(dataset: Dataset, rows_a_part: int = ROWS_A_PART) -> Iterator[Callable[[], Part]]:
    """Yield the work of each part, split after split; a part holds whole videos of one split."""
    seen: set[str] = set()
    for split, path in dataset.split_files().items():
        rows = read_rows(path, split)
        labelled = True
        if path.suffix == ".jsonl":
            gathered = list(_by_video(rows))
            labelled = any(row.windows for row in gathered)
            rows = iter(gathered)
        batch: list[tuple[RawRow, dict[str, Any], str, list[str]]] = []
        last = None
        for raw in rows:
            if len(batch) >= rows_a_part and raw.vid != last:
                yield partial(make_part, batch)
                batch = []
            batch.append((raw, *clean_row(raw, split, seen, labelled)))
            last = raw.vid
        yield partial(make_part, batch)


def work(dataset: Dataset) -> Work:
    """Key material: the files' digests and how they are cut into parts."""
    files = dataset.split_files()
    try:
        digests = {f"{split}: {path.name}": file_digest(path) for split, path in files.items()}
    except OSError as error:
        raise DatasetError(f"{error.filename} can't be read ({error.strerror}): check its permissions") from None
    return Work(
        dataset=dataset.name,
        stage=STAGE,
        version=VERSION,
        parameters={"splits": {split: path.name for split, path in files.items()}, "rows_a_part": ROWS_A_PART},
        inputs=digests,
    )


@task(name=STAGE)
def read_annotations(dataset: Dataset) -> Artifact:
    """Read a data set's files."""
    return run_stage(work(dataset), lambda: parts(dataset))
