"""Features and queries in memory, as training reads them: rows of the features, windows, clips and saliency.

The rules are those of the published loaders: a window is truncated to clips, at least one; spans are fractions of all
clips and not clamped; a clip's score is the sum of three annotators' in QVHighlights, otherwise 1 inside the moment.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from penumbra.artifacts.manifest import Artifact, rejection
from penumbra.artifacts.store import Store
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.grounding.metrics import CLIP_SECONDS

SMALLEST_NORM = 1e-5
NO_CLIPS, NO_WINDOW = np.zeros((0, 2), np.float32), torch.zeros(1, 2)
LEVELS = 3


@dataclass(frozen=True)
class Features:
    """Rows of many videos or texts in one tensor: rows `offsets[i]` to `offsets[i + 1]` belong to the i-th one.

    `index` maps a vid or text to i; `clip_length` is in seconds, 0 for texts. `encoders` are the numbers of channels of
    the encoders; `gather` divides each encoder's part of a row by its norm plus 1e-5, so that `values` can stay in half
    precision. `patches` of the videos are loaded for VDI's motion only.
    """

    values: Tensor
    offsets: Tensor
    index: dict[str, int] = field(default_factory=dict)
    clip_length: float = 0.0
    encoders: tuple[int, ...] = ()
    patches: "VideoPatches | None" = None

    @cached_property
    def starts(self) -> Tensor:
        """First row of each video or text [n], on the device of the values."""
        return self.offsets[:-1].to(self.values.device)

    @cached_property
    def lengths(self) -> Tensor:
        """Number of rows of each video or text [n], on the device of the values."""
        return self.offsets.diff().to(self.values.device)

    @cached_property
    def host_lengths(self) -> np.ndarray:
        """Number of rows of each video or text [n], on the CPU, so that `longest` does not wait for the device."""
        return self.offsets.diff().numpy()

    @property
    def channels(self) -> int:
        return self.values.shape[1]

    def to(self, device: torch.device) -> "Features":
        values = self.values if len(self.values) else self.values.new_zeros(1, *self.values.shape[1:])
        return replace(self, values=values.to(device), patches=self.patches and self.patches.to(device))

    def longest(self, rows: np.ndarray, multiple: int = 1) -> int:
        """Return the length of the longest item among `rows`, rounded up to a multiple, at most the longest of all."""
        longest = int(self.host_lengths[rows].max())
        return min(longest + -longest % multiple, int(self.host_lengths.max()))

    def gather(self, items: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Return the rows of items [...] as [..., longest, channels], zero for padding, and a mask [..., longest]."""
        place = torch.arange(longest, device=items.device)
        mask = place < self.lengths[items][..., None]
        rows = self.values[torch.where(mask, self.starts[items][..., None] + place, 0)]
        if self.encoders:
            rows = rows.float()
            for part in torch.split(rows, list(self.encoders), -1):
                part.div_(part.norm(dim=-1, keepdim=True) + SMALLEST_NORM)
        return rows.masked_fill_(~mask.view(mask.shape + (1,) * (rows.dim() - mask.dim())), 0), mask

    @cached_property
    def unusable(self) -> set[str]:
        """The names of videos or texts that contain a NaN or an infinity, or have no rows."""
        bad_rows = ~torch.isfinite(self.values.sum(1, dtype=torch.float32))
        before = torch.cat((torch.zeros(1, dtype=torch.long), bad_rows.long().cumsum(0)))
        bad = (before[self.offsets[1:]] > before[self.offsets[:-1]]) | (self.lengths == 0)
        return {name for name, row in self.index.items() if bad[row]}


class VideoPatches(NamedTuple):
    """Frames of many videos: `states` [patches, width] as bytes, the scale of the bytes, and the frame's vector."""

    states: Features
    scale: Features
    frames: Features

    def to(self, device: torch.device) -> "VideoPatches":
        return VideoPatches(*(part.to(device) for part in self))

    def gather(self, videos: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors, states [batch, frames, patches, width] and mask [batch, frames] of videos [batch]."""
        items, longest = torch.from_numpy(videos).to(self.states.values.device), max(1, self.states.longest(videos))
        states, mask = self.states.gather(items, longest)
        scale, frames = self.scale.gather(items, longest)[0], self.frames.gather(items, longest)[0]
        return frames.float(), states * scale[..., None, None], mask


def load_patches(artifact: Artifact, index: Mapping[str, int]) -> VideoPatches:
    """Return the patches of the videos in `index`; raise `FeatureError` if there are none."""
    columns = ["vid", "grid", "patches", "scale", "frames"]
    counts, found = np.zeros(len(index) + 1, np.int64), dict[int, list[np.ndarray]]()
    for part in Store().parts(artifact, columns):
        for vid, grid, data, scale, frames in zip(*(part[name] for name in columns), strict=True):
            row = index.get(vid.as_py())
            if row is not None:
                count = counts[row + 1] = len(scale)
                states = np.frombuffer(data.as_buffer(), np.int8).reshape(count, int(np.prod(grid.as_py())), -1)
                vectors = frames.values.flatten().to_numpy().reshape(count, -1)
                found[row] = [states, scale.values.to_numpy(), vectors]
    if not counts.any():
        raise FeatureError(f"{artifact.path} has no patches of any video that has features")
    offsets = torch.from_numpy(counts.cumsum())
    several = zip(*(found[row] for row in sorted(found)), strict=True)
    return VideoPatches(*(Features(torch.from_numpy(np.concatenate(column)), offsets) for column in several))


# -- features of one or several encoders -------------------------------------------------------------------------------


def load_features(artifact: Artifact) -> Features:
    """Return all rows of a features artifact as tensors; raise `FeatureError` if it has none."""
    table = read_features(artifact)
    if not len(table):
        raise FeatureError(
            f"{artifact.path} has no features. penumbra artifacts show {artifact.dataset}/{artifact.stage} says why; "
            f"fix the cause and run: penumbra run extract-features {artifact.dataset}"
        )
    offsets = torch.from_numpy(table.offsets)
    return Features(torch.from_numpy(table.values), offsets, table.index, table.clip_length)


def features_of(names: Sequence[str], rows: Sequence[np.ndarray], clip_length: float = 0.0) -> Features:
    """Return the features of videos or texts by their names, from the rows of each."""
    offsets = torch.from_numpy(np.cumsum([0, *map(len, rows)]))
    index = {name: place for place, name in enumerate(names)}
    return Features(torch.from_numpy(np.concatenate(rows)), offsets, index, clip_length)


def normalised(features: Features, longest: int | None) -> Features:
    """Return the first `longest` rows of each item, which `gather` normalises as the published loaders do."""
    features = replace(features, encoders=(features.channels,))
    if longest is None:
        return features
    lengths = features.lengths.clamp(max=longest)
    return replace(features, values=features.values[_rows(features.starts, lengths)], offsets=_offsets(lengths))


def joined(sources: Sequence[Features]) -> Features:
    """Concatenate features of several encoders of the same videos; a video is cut to its shortest source.

    Videos that a source lacks are left out. Raise `FeatureError` if the sources' clip lengths differ.
    """
    if len(sources) == 1:
        return sources[0]
    if len({source.clip_length for source in sources}) > 1:
        raise FeatureError(f"features of clips of {sorted({s.clip_length for s in sources})} s can't be joined")
    names = [name for name in sources[0].index if all(name in source.index for source in sources)]
    rows = [torch.tensor([source.index[name] for name in names], dtype=torch.long) for source in sources]
    lengths = torch.stack([s.lengths[r] for s, r in zip(sources, rows, strict=True)]).amin(0)
    parts = [s.values[_rows(s.starts[r], lengths)] for s, r in zip(sources, rows, strict=True)]
    encoders = tuple(channels for source in sources for channels in source.encoders)
    index = {name: row for row, name in enumerate(names)}
    return Features(torch.cat(parts, 1), _offsets(lengths), index, sources[0].clip_length, encoders)


def together(first: Features, second: Features) -> Features:
    """Return the texts of two sources of the same encoder; texts in both are taken from the first."""
    before = len(first.offsets) - 1
    return replace(
        first,
        values=torch.cat((first.values, second.values)),
        offsets=torch.cat((first.offsets, first.offsets[-1] + second.offsets[1:])),
        index={name: row + before for name, row in second.index.items()} | first.index,
    )


def _rows(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the row numbers start, …, start + length - 1 of all items, concatenated."""
    offsets = _offsets(lengths)
    return torch.arange(int(offsets[-1])) + (starts - offsets[:-1]).repeat_interleave(lengths)


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))


# -- queries -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examples:
    """N queries as tensors on the CPU, and the features that they refer to."""

    rows: tuple[Mapping[str, Any], ...]  # of the table `annotations`
    videos: Features
    texts: Features
    video: Tensor  # [N], index in `videos`
    text: Tensor  # [N], index in `texts`
    hard: Tensor  # [3, N], index of the hard negatives in `texts`; that of the query where a negative is missing
    hard_present: Tensor  # [3, N], False where a hard negative is missing
    windows: Tensor  # [N, W, 2] in seconds
    window_count: Tensor  # [N]
    duration: Tensor  # [N] in seconds
    clips: Features  # score and relevance of the clips, by query
    extremes: Tensor  # [N, 2], relevant clips of the highest and the lowest score; -1 where clips have no scores
    in_video: tuple[list[int], ...]  # [N], texts of other moments of the same video
    parts: tuple[tuple[str, str], ...] = ()  # static and dynamic query, or the query twice; () if the model reads none
    rejected: tuple[dict[str, str], ...] = ()  # queries that can't be used, with their reasons
    notes: Counter[str] = field(default_factory=Counter)  # numbers of queries with missing inputs

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def pairs(self) -> set[tuple[int, int]]:
        """The pairs (video, text) of all queries, from which `false_texts` knows the true texts of each video."""
        return set(zip(self.video.tolist(), self.text.tolist(), strict=True))

    def false_texts(self, rows: np.ndarray, following: np.ndarray | None, hard_present: Tensor) -> Tensor:
        """Return a mask [texts, n] of texts that are false of the videos of rows [n].

        They are those of the `following` rows, unless the video has the same query, and `hard_present` [levels, n].
        """
        if following is None:
            return hard_present
        asked = zip(self.video[rows].tolist(), self.text[following].tolist(), strict=True)
        return torch.cat((torch.tensor([[pair not in self.pairs for pair in asked]]), hard_present))


def clip_range(start: float, end: float, clips: int, clip_length: float) -> tuple[int, int]:
    """Return the first and last clip of a window: truncated, inside the video, at least one clip."""
    last = max(0, min(int(end / clip_length), clips) - 1)
    return min(int(start / clip_length), last), last


@dataclass(frozen=True)
class Loaded:
    """Features ready for a model, all rows of `annotations`, and the hard negatives of each query by level.

    By qid, `in_video` has the texts of other moments of the query's video (training queries only), and `parts` the
    static and dynamic query; both are None if the model does not read them. `judging` has the false sentences for
    evaluations, by kind.
    """

    videos: Features
    texts: Features
    rows: list[dict[str, Any]]
    negatives: dict[str, dict[int, str]]
    in_video: dict[str, list[str]] | None = None
    parts: dict[str, tuple[str, str]] | None = None
    judging: dict[str, dict[str, str]] = field(default_factory=dict)

    def splits(self) -> list[str]:
        return list(dict.fromkeys(row["split"] for row in self.rows))

    def of_split(self, splits: Iterable[str]) -> list[dict[str, Any]]:
        wanted = set(splits)
        return [row for row in self.rows if row["split"] in wanted]

    def examples_of(self, rows: Iterable[Mapping[str, Any]], stage: str) -> Examples:
        """Return examples of rows of `annotations`; those that can't be used are rejected, with their reasons."""
        videos, texts = self.videos, self.texts
        usable = {text: place for text, place in texts.index.items() if text not in texts.unusable}
        good, hard, inside, rejected, notes = [], list[dict[int, int]](), list[list[int]](), [], Counter[str]()
        for row in rows:
            qid = row["qid"]
            if fault := self._fault(row):
                rejected.append(rejection(qid, stage, *fault))
                continue
            good.append(row)
            hard.append({level: usable[it] for level, it in self.negatives.get(qid, {}).items() if it in usable})
            inside.append([usable[it] for it in (self.in_video or {}).get(qid, ()) if it in usable])
            if self.negatives and len(hard[-1]) < LEVELS:
                notes[f"query with {len(hard[-1])} of {LEVELS} hard negatives"] += 1
            if self.in_video is not None and not inside[-1] and row.get("split", "train") == "train":
                notes["query without a negative in its video"] += 1
        halves = [] if self.parts is None else [self.parts.get(row["qid"], (row["query"],) * 2) for row in good]
        notes["query that has no static and dynamic part"] += sum(static == dynamic for static, dynamic in halves)
        windows = [torch.tensor(row["windows"], dtype=torch.float32).view(-1, 2) for row in good]
        video = torch.tensor([videos.index[row["vid"]] for row in good], dtype=torch.long)
        text = torch.tensor([usable[row["query"]] for row in good], dtype=torch.long)
        levels = torch.tensor([[of.get(level, -1) for of in hard] for level in range(1, LEVELS + 1)], dtype=torch.long)
        lengths = videos.lengths[video]
        clips = [_clips(row, count, videos.clip_length) for row, count in zip(good, lengths.tolist(), strict=True)]
        return Examples(
            rows=tuple(good),
            videos=videos,
            texts=texts,
            video=video,
            text=text,
            hard=torch.where(levels < 0, text, levels),
            hard_present=levels >= 0,
            windows=pad_sequence([NO_WINDOW, *windows], batch_first=True)[1:],  # at least one column
            window_count=torch.tensor([len(it) for it in windows], dtype=torch.long),
            duration=torch.tensor([row["duration"] for row in good], dtype=torch.float64),
            clips=Features(torch.from_numpy(np.concatenate([NO_CLIPS, *(it for it, _ in clips)])), _offsets(lengths)),
            extremes=torch.tensor([extremes for _, extremes in clips], dtype=torch.long).view(-1, 2),
            in_video=tuple(inside),
            parts=tuple(halves),
            rejected=tuple(rejected),
            notes=+notes,
        )

    def _fault(self, row: Mapping[str, Any]) -> list[str] | None:
        """Return why a query can't be used, and the value at fault; None if it can."""
        vid, query = row["vid"], row["query"]
        faults = (
            (vid not in self.videos.index, "no features of its video", vid),
            (query not in self.texts.index, "no features of its text", query),
            (vid in self.videos.unusable, "features of its video are empty or hold a NaN", vid),
            (query in self.texts.unusable, "features of its text are empty or hold a NaN", query),
        )
        return next((fault for is_so, *fault in faults if is_so), None)


def _clips(row: Mapping[str, Any], clips: int, clip_length: float) -> tuple[np.ndarray, tuple[int, int]]:
    """Return score and relevance [clips, 2], and the relevant clips of the highest and lowest score."""
    values, judged = np.zeros((clips, 2), np.float32), row.get("saliency") or []
    if judged:
        ratio, places = CLIP_SECONDS / clip_length, np.array([clip["clip"] for clip in judged])
        firsts = np.minimum((places * ratio + 1e-9).astype(int), clips - 1)
        ends = np.ceil((places + 1) * ratio - 1e-9).astype(int)
        sums = np.array([sum(clip["scores"]) for clip in judged])
        order = np.argsort(sums)  # unstable, to break ties as the published loader does
        for first, end, score in zip(firsts, ends, sums, strict=True):
            values[first:end] = score, 1
        return values, (int(firsts[order[-1]]), int(firsts[order[0]]))
    for start, end in row["windows"]:
        first, last = clip_range(start, end, clips, clip_length)
        values[first : last + 1] = 1
    return values, (-1, -1)
