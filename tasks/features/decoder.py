"""Decode videos in a process of its own: `python -m penumbra.tasks.features.decoder DESCRIPTOR MEMORY`.

It has no network where the system allows that, and at most MEMORY bytes of address space. A job on socket DESCRIPTOR
is JSON (`decode` has its fields). The answer: JSON and bytes for each frame, then `summary` and `thumbnails`; or
`reason` and `value` if the video can't be used. Neither torch nor Prefect is imported, so that it starts quickly.
"""

import json
import os
import sys
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penumbra.artifacts.processes import confine, end_with_parent
from penumbra.tasks.features.errors import VideoError
from penumbra.tasks.features.frames import FilmStrip, Resizing, VideoSummary, clip_frames, resize


def decode(job: dict[str, Any], connection: Connection) -> None:
    path, summary, strip = Path(job["path"]), VideoSummary(), FilmStrip(job["thumbnails"])
    resizing = Resizing(**job["resizing"]) if job["resizing"] else None
    try:
        for index, picture in enumerate(clip_frames(path, job["clip_length"], summary)):
            strip.add(index, picture)
            frame = resize(picture, resizing) if resizing else picture
            _send(connection, {"shape": frame.shape})
            connection.send_bytes(frame.tobytes())
        _send(connection, {"summary": asdict(summary), "thumbnails": [index for index, _ in strip.thumbnails]})
        for _, jpeg in strip.thumbnails:
            connection.send_bytes(jpeg)
    except VideoError as error:
        _send(connection, {"reason": error.reason, "value": error.value})
    except BrokenPipeError:
        raise
    except MemoryError:
        _send(connection, {"reason": "decoder needs too much memory", "value": path.name})
    except Exception as error:
        _send(connection, {"reason": "decoder failed", "value": f"{type(error).__name__}: {error}"})


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def main() -> None:
    """Decode videos until the other end of the connection is closed."""
    descriptor, memory = map(int, sys.argv[1:])
    confine(memory)  # works only while the process has a single thread
    end_with_parent()
    connection = Connection(descriptor)
    try:
        while True:
            decode(json.loads(connection.recv_bytes()), connection)
    except (EOFError, OSError, KeyboardInterrupt):
        os._exit(1)


if __name__ == "__main__":
    main()
