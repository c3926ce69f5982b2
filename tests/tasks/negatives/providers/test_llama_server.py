"""A real OpenAI-compatible server program, `transformers serve`, with the tiny Llama: no stand-in of our own making.

It comes with transformers and needs fastapi, uvicorn, openai and accelerate (`transformers[serving]`). It answers chat
completions, ignores `response_format` (a warning in its log) and calls the model `<folder>@main`.
"""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_llama import build

pytestmark = pytest.mark.slow

NEEDED = ("accelerate", "fastapi", "openai", "uvicorn")
STARTS_WITHIN = 120  # seconds
SCHEMA = {"type": "object", "properties": {"1a": {"enum": ["cup"]}}, "required": ["1a"], "additionalProperties": False}


@dataclass(frozen=True)
class Server:
    """Where the server answers, the model that it serves and what it has printed."""

    url: str
    model: str
    log: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The program in a process of its own, without a network, until it says that it is well."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"`transformers serve` needs {', '.join(missing)}: pip install 'transformers[serving]'")
    folder = tmp_path_factory.mktemp("server")
    model, log = build(folder / "tiny"), folder / "log.txt"
    (folder / "home" / "hub").mkdir(parents=True)  # /v1/models lists this folder and fails without it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], env=environment, stdout=output, stderr=output
        )
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield Server(f"http://127.0.0.1:{port}/v1", str(model), log)
    finally:
        process.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Until the server is up; fails with its log where it is not."""
    end = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"`transformers serve` did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def ask(client: Any, server: Server, **more: object) -> Any:
    messages = [
        {"role": "system", "content": "Choose one word for each slot."},
        {"role": "user", "content": "1. person opens a [1a door: cup]"},
    ]
    return client.chat.completions.create(model=server.model, messages=messages, max_tokens=8, temperature=0, **more)


def test_a_chat_completion_says_who_answered_and_counts_its_tokens(client: Any, server: Server) -> None:
    answer = ask(client, server)
    assert len(answer.choices) == 1
    assert isinstance(answer.choices[0].message.content, str)
    assert answer.choices[0].finish_reason in {"length", "stop"}
    assert answer.model == f"{server.model}@main"  # not the name that was asked for
    assert 0 < answer.usage.completion_tokens <= 8
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == answer.usage.total_tokens


def test_it_ignores_a_schema_so_answers_have_to_be_checked(client: Any, server: Server) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "slots", "strict": True, "schema": SCHEMA}}
    free, bound = ask(client, server), ask(client, server, response_format=schema)
    assert bound.choices[0].message.content == free.choices[0].message.content
    assert "{'response_format'}" in server.log.read_text()


def test_it_refuses_fields_that_it_does_not_know(client: Any, server: Server) -> None:
    import openai

    with pytest.raises(openai.UnprocessableEntityError):
        ask(client, server, extra_body={"no_such_field": 1})


def test_it_lists_its_models(client: Any, server: Server) -> None:
    assert client.models.list().data == []  # those of the hub's cache: a folder that is served is not among them
