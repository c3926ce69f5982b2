"""The files of a data set: where they are, and how their queries are read, before anything is checked.

Formats: the Compositional-Temporal-Grounding JSON, and the JSON lines of Moment-DETR and SHINE. Both become `RawRow`s.
A file that is no data set raises `DatasetError`; a row that can't be read has the reason in `RawRow.fault`.
"""

import json
import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from penumbra.artifacts.errors import MissingError, PenumbraError, what_there_is
from penumbra.artifacts.locations import data_folder
from penumbra.artifacts.manifest import NAME
from penumbra.artifacts.markdown import truncated
from penumbra.tasks.parameter_group import Parameters

PUBLIC = ("charades-cg", "activitynet-cg")  # data sets that `penumbra fetch` downloads
LONGEST_NUMBER = 300  # digits
SHOWN = 80  # characters of a line in a message
CHECKED_BYTES = 20_000_000  # larger files are not checked before a run
EXPECTED = (
    'one line of JSON for each query, as {"qid": 1, "query": "a person opens the door.", "vid": "AO8RW", '
    '"duration": 33.7, "relevant_windows": [[0.0, 6.9]]}'
)
CG_KEYS = {"sentences", "timestamps", "duration"}
CG_FILES = {
    "train": "train.json",
    "test": "test_trivial.json",
    "composition": "novel_composition.json",
    "word": "novel_word.json",
}
CD_SPLITS = ("train", "val", "test_iid", "test_ood")  # of Charades-CD: charades_train.json …, or test_iid.jsonl …
PLACE, PLACES = "source_row", "source_rows"  # file and line in the user's own table, as `penumbra init` writes it
SHIPPED = Path(__file__).resolve().parent / "scenes"  # annotations and videos of the data set `scenes`


class DatasetError(PenumbraError):
    """A data set or one of its files can't be used at all; the message names it and the remedy."""


class Dataset(Parameters):
    """The data set to read."""

    name: str = Field(
        description="Name of the data set: the first folder below the artifacts' root.",
        json_schema_extra={"pattern": r"^[a-z0-9][a-z0-9._-]{0,99}$"},
    )
    folder: str | None = Field(
        None, description="Folder with the annotation files. Default: the folder of this name below PENUMBRA_DATA."
    )
    files: dict[str, str] = Field(
        {},
        description="File of each split, relative to the folder, as {'train': 'train.json', …}. "
        "Default: the files of the folder that have usual names.",
    )

    @field_validator("name")
    @classmethod
    def _is_a_folder(cls, name: str) -> str:
        if not NAME.match(name):
            raise ValueError(
                f"{truncated(name, SHOWN)!r} is no name of a data set: at most 100 small letters, digits, '.', '_' and "
                "'-', a letter or digit first, as in charades-cg"
            )
        return name

    def location(self) -> Path:
        """Return the folder of the files; for `scenes` the shipped one, unless the user has files of that name."""
        if self.folder:
            return Path(self.folder).expanduser()
        own = data_folder() / self.name  # for `scenes` this folder may hold only videos
        return SHIPPED if self.name == "scenes" and not any(own.glob("*.json*")) else own

    def split_files(self) -> dict[str, Path]:
        """Return the file of each split; raise `MissingError` if one is missing, `DatasetError` if one is unusable."""
        folder = self.location()
        fetch = f"run `penumbra fetch {self.name}` or " if self.name in PUBLIC else ""
        if not folder.is_dir():
            known = sorted({"scenes", *PUBLIC, *(path.name for path in data_folder().glob("*/"))})
            remedy = "name the folder that holds its files with dataset.folder"
            if not self.folder:
                made = f"make it from a table with `penumbra init {self.name} --from FILE`, or set PENUMBRA_DATA; "
                remedy = f"{fetch}set PENUMBRA_DATA" if fetch else made + what_there_is(self.name, known)
            raise MissingError(f"no folder {folder} for data set {self.name}: {remedy}")
        names = self.files or _usual_files(folder)
        if not names:
            raise MissingError(
                f"{folder} holds no train.json and no *train*.jsonl: make them with `penumbra init NAME --from FILE`, "
                f"or name its files with dataset.files; they hold {EXPECTED}"
            )
        paths = {split: folder / name for split, name in names.items()}
        for split, path in paths.items():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise DatasetError(f"file {path} of split {split} lies outside {folder}: name files inside it")
            if not path.is_file():
                raise MissingError(f"no file {path} for split {split}: {fetch}name it with dataset.files")
        return paths

    def check(self) -> None:
        """Raise `MissingError` if a file is missing, `DatasetError` if one below `CHECKED_BYTES` is no data set."""
        for split, path in self.split_files().items():
            if path.stat().st_size < CHECKED_BYTES:
                next(read_rows(path, split))


def videos_of(dataset: str) -> Path:
    """Return the default folder of a data set's videos: the user's own, or the shipped one for `scenes`."""
    own = data_folder() / dataset / "videos"
    return own if own.is_dir() else Dataset(name=dataset).location() / "videos"


def _usual_files(folder: Path) -> dict[str, str]:
    if (folder / CG_FILES["train"]).is_file():
        return {split: name for split, name in CG_FILES.items() if (folder / name).is_file()}
    changing = {split: [*folder.glob(f"*_{split}.json")] for split in CD_SPLITS}
    if all(len(paths) == 1 for paths in changing.values()):
        return {split: paths[0].name for split, paths in changing.items()}
    names: dict[str, str] = {}
    for path in sorted(folder.glob("*.jsonl")):
        stem = path.stem.lower().replace("-", "_")
        for split in (split for split in ("train", "val", "test") if split in stem.split("_")):
            own = stem if stem in CD_SPLITS else split
            if own in names:
                raise DatasetError(
                    f"{folder} holds two {split} files, {names[own]} and {path.name}: remove one, or name the "
                    f"""right one with --param 'dataset.files={{"{split}":"{path.name}"}}'"""
                )
            names[own] = path.name
    return names


@dataclass
class RawRow:
    """One query as it is in its file, before anything is checked.

    `fault` is the reason why it can't be read; `labelled` is whether its split has windows (a hidden test split has
    none). `place` is its file and line, of the user's table if `penumbra init` wrote the file.
    """

    qid: str
    place: str
    vid: Any = ""
    query: Any = ""
    duration: Any = None
    windows: Any = None
    novel: list[dict[str, Any]] = field(default_factory=list)
    saliency: tuple[Any, Any] = (None, None)
    fault: str = ""
    labelled: bool = True


def read_rows(path: Path, split: str) -> Iterator[RawRow]:
    """Yield the queries of a file in order; raise `DatasetError` if it is no data set."""
    try:
        is_empty = True
        for row in _json_lines_rows(path) if path.suffix == ".jsonl" else _compositional_rows(path, split):
            is_empty = False
            yield row
    except OSError as error:
        raise DatasetError(f"{path} can't be read ({error.strerror}): check its permissions") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text (byte {error.start}): convert it or fetch it again") from None
    if is_empty:
        raise DatasetError(f"{path} holds no query: is it the right file?")


class _Object(dict[str, Any]):
    """A JSON object that keeps all its members in order, so that repeated keys are found."""

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        super().__init__(members)
        self.members = members


def _compositional_rows(path: Path, split: str) -> Iterator[RawRow]:
    text = path.read_text(encoding="utf-8-sig")
    try:
        videos = json.loads(text, object_pairs_hook=_Object, parse_int=whole_number)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DatasetError(f"{path} is not a JSON object of videos ({error}): fetch it again") from None
    if not isinstance(videos, _Object):
        raise DatasetError(f"{path} is not a JSON object of videos (it has {start_of(text)}): fetch it again")
    good: set[str] = set()
    for vid, content in videos.members:
        video: dict[str, Any] = content if isinstance(content, dict) else {}
        lacking, fault = sorted(CG_KEYS - video.keys()), ""
        sentences, timestamps = video.get("sentences"), video.get("timestamps")
        if lacking and not good:
            raise DatasetError(
                f"{path}: entry {vid!r} lacks {', '.join(lacking)}: this is no Compositional-Temporal-Grounding file; "
                "name the right one with dataset.files"
            )
        if lacking or not isinstance(sentences, list) or not isinstance(timestamps, list):
            fault = f"video lacks {', '.join(lacking)}" if lacking else "sentences or timestamps are no list"
            sentences, timestamps = [""], []
        elif vid in good:
            fault = "video id occurs twice in the file"
        elif len(sentences) != len(timestamps):
            fault = "sentences and timestamps differ in number"
        if not lacking:
            good.add(vid)
        found = video.get("novels") or video.get("news"), video.get(PLACES)
        labels, places = (it if isinstance(it, list) else [] for it in found)
        for number, (query, window) in enumerate(zip_longest(sentences, timestamps, fillvalue="")):
            qid = f"{vid}_{split}_{number}"
            yield RawRow(
                qid,
                place=truncated(str(places[number]), SHOWN) if number < len(places) else f"{path.name} {qid}",
                vid=vid,
                query=query,
                duration=video.get("duration"),
                windows=[window],
                novel=_novel_labels(labels[number]) if number < len(labels) else [],
                fault=fault,
            )


def _novel_labels(labels: Any) -> list[dict[str, Any]]:
    """Convert {'v-n': [['put', 'cup']]} or {'NOUN': ['cup']} to rows of type and words."""
    novel = []
    for kind, entries in labels.items() if isinstance(labels, dict) else ():
        for entry in entries if isinstance(entries, list) else [entries]:
            words = entry if isinstance(entry, list) else [entry]
            novel.append({"type": str(kind), "words": [str(word) for word in words]})
    return novel


def _json_lines_rows(path: Path) -> Iterator[RawRow]:
    """Yield the rows of JSON lines (Moment-DETR, SHINE), grouped by video; memory holds only their positions."""
    videos: dict[str, array[int]] = {}  # offset and line number of each row
    labelled = False
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            row = json_object(line) or {}
            if not videos and not {"qid", "query", "vid"} <= row.keys():
                raise DatasetError(
                    f"{path} line {number} is no JSON object with qid, query and vid; it has {start_of(line)}: this is "
                    f"no grounding data set, which holds {EXPECTED}; fetch it again or name another"
                )
            labelled = labelled or bool(row.get("relevant_windows"))
            videos.setdefault(str(row.get("vid")), array("q")).extend((stream.tell() - len(line), number))
        for positions in videos.values():
            for position, number in zip(positions[::2], positions[1::2], strict=True):
                stream.seek(position)
                row, place = json_object(stream.readline()) or {}, f"{path.name}:{number}"
                if not {"qid", "query", "vid"} <= row.keys():
                    yield RawRow(place, place, fault="line is no JSON object with qid, query and vid")
                    continue
                yield RawRow(
                    qid="" if row["qid"] is None else str(row["qid"]).strip(),
                    place=truncated(str(row.get(PLACE) or place), SHOWN),
                    vid=row["vid"],
                    query=row["query"],
                    duration=row.get("duration"),
                    windows=row.get("relevant_windows", []),
                    saliency=(row.get("relevant_clip_ids"), row.get("saliency_scores")),
                    labelled=labelled,
                )


def json_object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if the line holds no object."""
    try:
        row = json.loads(line.decode("utf-8-sig"), parse_int=whole_number)
    except (json.JSONDecodeError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def whole_number(digits: str) -> float:
    """Convert digits to an integer, or to infinity if there are too many: JSON allows integers of any length."""
    return int(digits) if len(digits) < LONGEST_NUMBER else math.inf


def start_of(content: bytes | str) -> str:
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    return truncated(text.strip(), SHOWN)
