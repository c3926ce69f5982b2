"""What can be set: one flat dataclass, the same on the command line, in a test and over `POST /__settings`."""

import argparse
import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any


@dataclasses.dataclass
class Settings:
    """Everything a stand-in server can be told; `None` means no limit or no check."""

    port: int = 0
    latency: float = 0.0  # seconds before a model's answer
    jitter: float = 0.0  # up to this many seconds more, drawn with the seed
    seed: int = 0
    answer: str = "tests.protocol_server.answers:answer"  # module:function, payload -> text
    script: dict[str, Any] = dataclasses.field(default_factory=dict)  # see faults.py
    log: str | None = None  # JSONL, one line a request
    log_text: bool = False  # put the prompts' text there too
    buffer_log: bool = False  # write in blocks, flushed by GET /__stats: for benchmarks
    keys: list[str] | None = None  # accepted API keys
    models: list[str] | None = None  # models that exist; others are 404
    max_in_flight: int | None = None  # 429 above it
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    minute: float = 60.0  # seconds in a "minute", so that tests need not wait for one
    idempotent: bool = False  # the same Idempotency-Key gets the same answer, which is charged once
    announce_limits: bool = False  # x-ratelimit-* headers
    batch_polls: int = 2  # GETs of a batch until it is done ...
    batch_seconds: float | None = None  # ... or seconds, where given
    batch_outcome: str = "completed"  # completed, expired (half-way) or failed
    die_with_parent: bool = False  # end when standard input closes

    def change(self, values: dict[str, Any]) -> None:
        """Set fields by name; an unknown name is an error."""
        unknown = values.keys() - {field.name for field in dataclasses.fields(self)}
        if unknown:
            raise ValueError(f"no such setting: {', '.join(sorted(unknown))}")
        for name, value in values.items():
            setattr(self, name, value)


def from_command_line(arguments: list[str] | None = None) -> Settings:
    """`--latency 0.2 --log FILE --script FILE_OR_JSON --keys a,b`: a flag a field."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol_server", description=__doc__)
    for name, kind in typing.get_type_hints(Settings).items():
        flag = "--" + name.replace("_", "-")
        if kind is bool:
            parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS)
        else:
            parser.add_argument(flag, type=_reader(kind), default=argparse.SUPPRESS)
    return Settings(**vars(parser.parse_args(arguments)))


def _reader(kind: Any) -> Any:
    """The function that reads a flag's text as this type."""
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    origin = typing.get_origin(kind)
    if origin is list:
        return lambda text: text.split(",")
    return _read_json if origin is dict else kind


def _read_json(text: str) -> Any:
    return json.loads(text if text.lstrip().startswith("{") else Path(text).read_text("utf-8"))
