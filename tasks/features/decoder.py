"""A worker process: gets one video a line, answers with the frame of each of its clips.

It reads files of others with decoders of others: with an argument, the bytes that it may take (0: any), it is confined.

Started by `penumbra.tasks.features.decoders` as `python -m penumbra.tasks.features.decoder`, and ended by
it where a decoder hangs. A job is a line of JSON on standard input (path, clip_length, device). An answer is a line of
JSON on standard output: `rows` and `columns` of a frame, whose bytes follow it; `summary`, at the end of the video; or
`reason` and `value`, where it can't be used. Imports neither torch nor Prefect, so that it starts in a moment.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from penumbra.artifacts.processes import confine, end_with_parent
from penumbra.tasks.features.frames import VideoError, VideoSummary, clip_frames


def answer(job: dict[str, str], out: BinaryIO) -> None:
    """Decode one video."""
    summary = VideoSummary()
    try:
        for picture in clip_frames(Path(job["path"]), float(job["clip_length"]), summary, job["device"]):
            _tell(out, {"rows": picture.shape[0], "columns": picture.shape[1]})
            out.write(picture.data)
        _tell(out, {"summary": asdict(summary)})
    except VideoError as error:
        _tell(out, {"reason": error.reason, "value": str(error.value)})
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except MemoryError:
        _tell(out, {"reason": "decoder needs more memory than videos.decoder_mb", "value": Path(job["path"]).name})
    except Exception as error:
        _tell(out, {"reason": "decoder failed", "value": f"{type(error).__name__}: {error}"})


def _tell(out: BinaryIO, message: dict[str, object]) -> None:
    out.write(json.dumps(message).encode() + b"\n")
    out.flush()


def main() -> None:
    """Answer until standard input ends."""
    if sys.argv[1:]:
        confine(int(sys.argv[1]))  # before there is a second thread
    end_with_parent()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not come between the answers
    try:
        for line in sys.stdin.buffer:
            answer(json.loads(line), out)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)


if __name__ == "__main__":
    main()
