"""`make bench`: features against the plain way of the field and against the bare encoder, and how they are stored.

    python -m bench.features [texts] [videos] [sample] [storage]

Encoder: ViT-B/32's size with random weights. `plain` is the field's way: one text at a time, padded to 77, duplicates
and all; all frames of a video, then one batch, then the next video. `limit` is the bare forward pass on random tensors
of the same shapes, the faster of two ways: all cores on one batch, or a batch a core. `sample` is the command that
renders the sample's videos and extracts their features, on one core and on all. JSON, one object a measurement.
"""

import io
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from bench.engines import RUN, run
from penumbra.artifacts.manifest import Part, Work
from penumbra.artifacts.processes import cores
from penumbra.artifacts.store import Store
from penumbra.tasks.data.dataset import SHIPPED
from penumbra.tasks.features.clip import FOLDER, Clip, Encoder, Processing, encoder_threads, load
from penumbra.tasks.features.decoders import Pool, Video
from penumbra.tasks.features.encode import FrameEncoder
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.features.text import batches_of_one_length, encode_texts
from penumbra.tasks.features.video import features_table

TEXTS, PLAINLY, VIDEOS, CLIP_LENGTH, BATCH = 2000, 30, 12, 1.0, 16
STORED, DIMENSION = 1000, 512

Float16Array = npt.NDArray[np.float16]


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def base_size() -> Encoder:
    """A CLIP of ViT-B/32's size with random weights; the tokenizer is the shipped one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    tiny = load(Clip(encoder="tiny-clip", device="cpu"))
    processing = Processing(
        224, (224, 224), (224, 224), "bicubic", 1 / 255, tiny.processing.mean, tiny.processing.deviation
    )
    model: Any = CLIPModel(CLIPConfig(text_config={"eos_token_id": len(tiny.tokenizer) - 1}))
    return Encoder("ViT-B/32, random", model.eval().to(device), tiny.tokenizer, processing, device, torch.float32)


def fastest(encoder: Encoder, batches: list[Callable[[], object]]) -> float:
    """Seconds that the bare encoder takes: the better of all cores on a batch and a batch a core."""

    def run(batch: Callable[[], object]) -> None:
        with torch.inference_mode():
            batch()

    run(batches[0])
    together = timed(lambda: [run(batch) for batch in batches])
    threads, number = encoder_threads(encoder)
    with threads:
        apart = timed(lambda: list(threads.map(run, batches))) if number > 1 else together
    return min(together, apart)


def texts() -> dict[str, Any]:
    """Queries of the sample, each as often as it occurs there with its three negatives' worth of repetition."""
    queries = [
        sentence
        for path in sorted((SHIPPED).glob("*.json"))
        for video in json.loads(path.read_text()).values()
        for sentence in video["sentences"]
    ]
    chance = np.random.default_rng(0)
    some = [queries[i] for i in chance.integers(0, len(queries) // 4, TEXTS)]
    distinct = sorted(set(some))
    encoder = base_size()

    def plain() -> None:
        for text in some[:PLAINLY]:  # so slow that a share of them must do
            inputs = encoder.tokenizer(text, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                encoder.model.get_text_features(**inputs.to(encoder.device))

    lengths = [len(ids) for ids in encoder.tokenizer(distinct)["input_ids"]]
    shapes = [(len(rows), lengths[rows[0]]) for rows in batches_of_one_length(lengths, 64)]
    tensors = [torch.randint(0, 900, shape, device=encoder.device) for shape in shapes]
    bare = [lambda t=t: encoder.model.get_text_features(t) for t in tensors]  # type: ignore[misc]
    limit = min(fastest(encoder, bare) for _ in range(3))
    encode_texts(distinct[:8], encoder, 64)
    ours = min(timed(lambda: encode_texts(distinct, encoder, 64)) for _ in range(3))
    slow = timed(plain) * TEXTS / PLAINLY
    return {
        "measured": "texts",
        "texts": len(some),
        "distinct": len(distinct),
        "plain_seconds": round(slow, 2),
        "seconds": round(ours, 2),
        "limit_seconds": round(limit, 2),
        "share_of_limit": round(limit / ours, 3),
        "times_plain": round(slow / ours, 1),
        "texts_a_second": round(len(distinct) / ours, 1),
    }


def decode_all(path: Path) -> list[npt.NDArray[np.uint8]]:
    """Every frame of a video."""
    with av.open(str(path)) as container:
        return [np.asarray(frame.to_ndarray(format="rgb24"), np.uint8) for frame in container.decode(video=0)]


def videos() -> dict[str, Any]:
    """Rendered scenes, a clip a second."""
    if True:
        files = [Video(path.stem, path) for path in sorted((SHIPPED / "videos").glob("*.mp4"))[:VIDEOS]]
        encoder, processor = (
            base_size(),
            CLIPImageProcessorPil.from_pretrained(
                FOLDER, size={"shortest_edge": 224}, crop_size={"height": 224, "width": 224}
            ),
        )

        def decode() -> int:
            pool = Pool(cores(), CLIP_LENGTH, "", 60, 1 << 30, 10**9)
            return sum(told.picture is not None for told in pool.decode(files))

        def ours() -> int:
            pool = Pool(cores(), CLIP_LENGTH, "", 60, 1 << 29, 4 * BATCH)
            return sum(
                len(done.features)
                for done in FrameEncoder(encoder, BATCH).encode(pool.decode(files))
                if done.features is not None
            )

        def plain() -> None:
            for file in files:
                frames = decode_all(file.path)
                pixels = processor(frames[5::10], return_tensors="pt")["pixel_values"].to(encoder.device)
                with torch.inference_mode():
                    encoder.model.get_image_features(pixels)

        clips = decode()
        tensor = torch.randn(BATCH, 3, 224, 224, device=encoder.device)
        limit = fastest(encoder, [lambda: encoder.model.get_image_features(tensor)] * (clips // BATCH))
        limit *= clips / (clips // BATCH * BATCH)
        seconds, slow, decoding = timed(ours), timed(plain), timed(decode)
    return {
        "measured": "videos",
        "videos": VIDEOS,
        "clips": clips,
        "clip_length": CLIP_LENGTH,
        "plain_seconds": round(slow, 2),
        "seconds": round(seconds, 2),
        "limit_seconds": round(limit, 2),
        "share_of_limit": round(limit / seconds, 3),
        "times_plain": round(slow / seconds, 2),
        "clips_a_second": round(clips / seconds, 1),
        "decoding_alone_seconds": round(decoding, 2),
    }


def sample() -> dict[str, Any]:
    """`extract-features scenes`, with nothing rendered yet."""
    found = {}
    for name, some in (("one_core", {min(os.sched_getaffinity(0))}), ("all_cores", os.sched_getaffinity(0))):
        with tempfile.TemporaryDirectory() as folder:
            variables = {
                "PENUMBRA_DATA": f"{folder}/data",
                "PENUMBRA_ARTIFACTS": f"{folder}/artifacts",
                "PREFECT_HOME": f"{folder}/prefect",
                "PREFECT_API_URL": "",
            }
            found[name], _ = run((*RUN, "extract-features", "scenes"), variables, some)
            made = {it.stage: it.seconds for it in Store(variables["PENUMBRA_ARTIFACTS"]).find("scenes")}
        found |= {f"{name}_{stage}": round(seconds, 1) for stage, seconds in made.items()}
    return {"measured": "sample", **found, "ratio": round(found["one_core"] / found["all_cores"], 2)}


def matrices() -> dict[str, Float16Array]:
    """Features of many videos, unit-normal numbers."""
    chance = np.random.default_rng(0)
    return {
        f"v{i:05}": chance.standard_normal((chance.integers(10, 120), DIMENSION)).astype(np.float16)
        for i in range(STORED)
    }


def bring_together(found: Iterator[Float16Array]) -> Float16Array:
    """One contiguous array."""
    return np.concatenate(list(found))


def storage() -> Iterator[dict[str, Any]]:
    """Reading all features into one array: our Parquet in other shapes, HDF5, a folder of .npz and .npy files."""
    rows = matrices()
    size = sum(values.nbytes for values in rows.values())
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        several = [(vid, float(len(values)), values) for vid, values in rows.items()]
        parts = [several[start : start + 64] for start in range(0, len(several), 64)]
        table = [features_table("bench", 1.0, part, DIMENSION) for part in parts]
        store = Store(str(folder / "store"))
        work = Work("bench", "video_features", 1, unit="video")
        writing = timed(lambda: store.build(work, [lambda t=t: Part(t, len(t), len(t)) for t in table]))  # type: ignore[misc]
        artifact = store.artifact(work)
        yield told("our Parquet, read by read_features", size, lambda: read_features(artifact), writing)
        for name, options in SHAPES.items():
            blobs = [io.BytesIO() for _ in table]
            writing = timed(
                lambda b=blobs, o=options: [pq.write_table(t, s, **o) for t, s in zip(table, b, strict=True)]
            )  # type: ignore[misc]
            share = sum(len(blob.getbuffer()) for blob in blobs) / size
            yield told(
                f"Parquet through pyarrow: {name}",
                size,
                lambda b=blobs: [read_table(blob) for blob in b],  # type: ignore[misc]
                writing,
                share,
            )
        binary = [t.append_column("values", blobs_of(t)).select(["values"]) for t in table]
        for i, some in enumerate(binary):
            pq.write_table(some, folder / f"{i:05}.parquet", compression="none", use_dictionary=False)
        files = sorted(folder.glob("*.parquet"))
        yield told("Parquet through pyarrow: large_binary", size, lambda f=files: bring_together(map(read_blobs, f)))  # type: ignore[misc]
        for i, some in enumerate(table):
            with pa.OSFile(str(folder / f"{i:05}.arrow"), "wb") as sink, pa.ipc.new_file(sink, some.schema) as writer:
                writer.write_table(some)
        files = sorted(folder.glob("*.arrow"))
        yield told("Arrow IPC, mapped", size, lambda f=files: bring_together(map(read_mapped, f)))  # type: ignore[misc]
        with h5py.File(folder / "all.h5", "w") as file:
            for vid, values in rows.items():
                file[vid] = values
        with h5py.File(folder / "all.h5") as file:
            yield told("HDF5, a data set a video", size, lambda: bring_together(file[vid][()] for vid in file))
        for suffix, save in ((".npz", lambda path, values: np.savez(path, features=values)), (".npy", np.save)):
            for vid, values in rows.items():
                save(folder / f"{vid}{suffix}", values)
            files = sorted(folder.glob(f"*{suffix}"))
            yield told(f"a folder of {suffix}", size, lambda f=files: bring_together(map(load_array, f)))  # type: ignore[misc]
        yield told("a copy in memory", size, lambda: np.concatenate(list(rows.values())))


COLUMN = "features.list.element.list.element"
SHAPES: dict[str, dict[str, Any]] = {
    "pyarrow's defaults with zstd": {"compression": "zstd"},
    "plain, uncompressed": {"compression": "none", "use_dictionary": False},
    "plain, zstd": {"compression": "zstd", "use_dictionary": False},
    "byte-stream split, zstd": {
        "compression": "zstd",
        "use_dictionary": False,
        "column_encoding": {COLUMN: "BYTE_STREAM_SPLIT"},
    },
    "plain, uncompressed, 8 rows a group": {"compression": "none", "use_dictionary": False, "row_group_size": 8},
}


def read_table(blob: io.BytesIO) -> Float16Array:
    """A file's features as pyarrow reads them."""
    blob.seek(0)
    column = pq.read_table(pa.BufferReader(blob.getbuffer()), columns=["features"])["features"].combine_chunks()
    values: Float16Array = column.flatten().flatten().to_numpy(zero_copy_only=False)
    return values


def blobs_of(table: pa.Table) -> pa.Array:
    """The features as a video's bytes."""
    column = table["features"].combine_chunks()
    values = column.flatten().flatten().to_numpy(zero_copy_only=False).reshape(-1, DIMENSION)
    several = np.split(values, column.offsets.to_numpy()[1:-1])
    return pa.array([some.tobytes() for some in several], pa.large_binary())


def read_blobs(path: Path) -> Float16Array:
    """The features of a file of videos' bytes."""
    column = pq.read_table(path, memory_map=True)["values"].combine_chunks()
    return np.frombuffer(column.buffers()[2], np.float16).reshape(-1, DIMENSION)


def read_mapped(path: Path) -> Float16Array:
    """The features of an IPC file, where they lie."""
    with pa.memory_map(str(path)) as source:
        column = pa.ipc.open_file(source).read_all()["features"].combine_chunks()
    values: Float16Array = column.flatten().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, DIMENSION)


def load_array(path: Path) -> Float16Array:
    """A video's features from a file of its own."""
    loaded = np.load(path)
    values: Float16Array = loaded if isinstance(loaded, np.ndarray) else loaded["features"]
    return values


def told(what: str, size: int, read: Callable[[], object], writing: float = 0, share: float = 1) -> dict[str, Any]:
    """Best of three readings, in MB a second."""
    best = min(timed(read) for _ in range(3))
    return {
        "measured": "storage",
        "what": what,
        "MB": round(size / 1e6),
        "read_MB_a_second": round(size / 1e6 / best),
        **({"write_MB_a_second": round(size / 1e6 / writing)} if writing else {}),
        **({"bytes_a_byte": round(share, 3)} if share != 1 else {}),
    }


def main() -> None:
    """Print what is asked for, or everything."""
    wanted = sys.argv[1:] or ["texts", "videos", "sample", "storage"]
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "not run: no GPU"
    print(json.dumps({"cores": os.cpu_count(), "machine": platform.machine(), "gpu": where}))
    for name in wanted:
        found = globals()[name]()
        for row in [found] if isinstance(found, dict) else found:
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
