"""The generated reference pages are complete, and the guides name only parameters that exist."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from penumbra.flows.commands import app
from penumbra.flows.parameters import parameters_of
from penumbra.flows.registry import FLOWS, flow_of

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
GUIDES = [path for path in (PROJECT / "docs").rglob("*.md") if path.stem != "extending"]  # whose parameters are new
PAGES = ["README.md", *sorted(str(path.relative_to(PROJECT)) for path in GUIDES)]
SOURCES = [path for folder in ("artifacts", "flows", "tasks") for path in (PROJECT / folder).rglob("*.py")]
MESSAGES = sorted(str(path.relative_to(PROJECT)) for path in SOURCES if "penumbra " in path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reference() -> Any:
    specification = importlib.util.spec_from_file_location("reference", PROJECT / "docs" / "reference.py")
    module = sys.modules["reference"] = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def parameters(reference: Any) -> str:
    return reference.parameters_page()


def test_the_page_lists_every_parameter_of_every_flow(parameters: str) -> None:
    for flow in FLOWS:
        assert f"### {flow}" in parameters
        for parameter in parameters_of(flow_of(flow)):
            assert not parameter.type or f"| `{parameter.path}` |" in parameters, (flow, parameter.path)


@pytest.mark.parametrize("page", [*PAGES, *MESSAGES])
def test_parameters_in_the_guides_and_in_messages_exist(parameters: str, page: str) -> None:
    known = set(re.findall(r"\| `([\w.\[\]]+)`", parameters))
    groups = {path.split(".")[0] for path in known if "." in path}
    text = (PROJECT / page).read_text(encoding="utf-8")
    named = re.findall(r"--param '?([a-z][\w.]*)=", text)
    named += [path for path in re.findall(r"`(\w+(?:\.\w+)+)(?:=[^`]*)?`", text) if path.split(".")[0] in groups]
    last = {path.rsplit(".", 1)[-1] for path in known}
    assert [path for path in named if path not in (known if "." in path else known | last)] == []


def test_the_page_lists_every_command(reference: Any) -> None:
    page = reference.command_page()
    assert "## `penumbra run`\n" in page
    assert "$ penumbra run [OPTIONS] {FLOW} {DATASET}\n" in page
    assert "## `penumbra artifacts path`\n" in page
    assert "`--dry-run`" in page


@pytest.mark.parametrize("page", [*PAGES, "docs/extending.md", "CONTRIBUTING.md", *MESSAGES])
def test_commands_and_options_on_the_pages_and_in_messages_exist(page: str) -> None:
    text, program = (PROJECT / page).read_text(encoding="utf-8"), typer.main.get_command(app)
    for line in re.findall(r"(?<![\w/.-])(?<!install )penumbra (?!penumbra)([a-z][a-z-]+(?: [^\n`#|]*)?)", text):
        command, words = program, line.split()
        while words and (commands := getattr(command, "commands", None)):
            assert words[0] in commands, line
            command = commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        assert {option for word in words for option in re.findall("^--[a-z-]+", word)} <= known, line


@pytest.mark.parametrize("page", [*PAGES, "docs/extending.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_work_on_github_before_the_site_is_built(page: str) -> None:
    path = PROJECT / page
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (path.parent / target).exists(), target


def test_the_site_is_built_with_valid_links(tmp_path: Path) -> None:
    pytest.importorskip("material")  # what `make docs` installs
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference" / "parameters.html").read_text(encoding="utf-8")
    assert "<code>masking.ratios</code>" in page
    assert not re.search(r'(?:src|rel="stylesheet" href)="https?://', page)  # nothing is fetched from elsewhere
