"""Prompt files: which are valid, and that a row's label names the text that was sent."""

from pathlib import Path

import pytest

from penumbra.artifacts.errors import PenumbraError
from penumbra.tasks.negatives.providers import FOLDER, load_prompt
from penumbra.tasks.negatives.providers.hosted import GeminiService, OpenAIService
from penumbra.tasks.negatives.providers.questions import request_text
from penumbra.tasks.negatives.providers.settings import Gemini, OpenAI
from tests.hosted import questions

GOOD = "name: p\nversion: 2\nvariables: queries\n---\nSay $5 and {}.\n---\nHere:\n$queries\n"


def written(folder: Path, content: str, name: str = "p-2") -> Path:
    (folder / f"{name}.txt").write_text(content, encoding="utf-8")
    return folder


def test_a_prompt_is_static_text_and_a_text_with_variables(tmp_path: Path) -> None:
    prompt = load_prompt("p-2", "queries", folder=written(tmp_path, GOOD))
    assert prompt.static == "Say $5 and {}."
    assert prompt.fill(queries="$queries ${x} {y} %s") == "Here:\n$queries ${x} {y} %s"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (GOOD.replace("---", "--"), "separated by '---'"),
        (GOOD.replace("$queries", "$query"), r"uses the variables \['query'\]"),
        (GOOD.replace("$queries", "$queries $other"), "'other'"),
    ],
)
def test_what_is_no_prompt_says_why_and_where(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(PenumbraError, match=reason) as caught:
        load_prompt("p-2", "queries", folder=written(tmp_path, content))
    assert "p-2.txt" in str(caught.value)


@pytest.mark.parametrize("name", ["none", "../p-2", "/etc/passwd", "p-2\n"])
def test_a_name_that_is_no_file_of_the_folder_is_refused_with_those_that_are(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    written(tmp_path, GOOD)
    written(folder, GOOD, "other-1")
    with pytest.raises(PenumbraError, match="there are: other-1"):
        load_prompt(name, "queries", folder=folder)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_every_shipped_prompt_can_be_read_and_says_its_name_and_version(path: Path) -> None:
    head = dict(line.split(": ", 1) for line in path.read_text().split("\n---\n")[0].splitlines())
    assert f"{head['name']}-{head['version']}" == path.stem
    prompt = load_prompt(path.stem, *head["variables"].split(", "))
    assert "$" not in prompt.static
    assert prompt.label.startswith(f"{path.stem}@")


def test_the_static_text_goes_first_and_is_the_same_in_every_request() -> None:
    prompt = load_prompt("fill-slots-1", "queries")
    first, second = questions(3), questions(3, start=50)
    bodies = [OpenAIService(OpenAI(), prompt).payload(some) for some in (first, second)]
    assert [message["role"] for message in bodies[0]["messages"]] == ["system", "user"]
    assert bodies[0]["messages"][0] == bodies[1]["messages"][0] == {"role": "system", "content": prompt.static}
    assert bodies[0]["messages"][1]["content"] == request_text(first)
    assert GeminiService(Gemini(), prompt).payload(second)["contents"] == request_text(second)
