"""Prompt templates: text files below `prompts/`, named `<name>-<version>.txt`, that a person can edit.

A file is a head (`name`, `version`, `variables`), the static text and the text with the variables, parted by lines
of three dashes. The static text goes first in every request, so that a service's prompt cache finds it again.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT

FOLDER = PROJECT / "prompts"
NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
VARIABLE = re.compile(r"\$\{?([a-z_]+)\}?")


class PromptError(PenumbraError):
    """A prompt file is missing or is not made as one."""


@dataclass(frozen=True)
class Prompt:
    """A template; `label` (name-version@digest of the file) is what a row's `prompt` column says."""

    label: str
    static: str
    template: str

    def fill(self, **variables: str) -> str:
        """The variable text with its variables filled in."""
        return Template(self.template).substitute(variables)


def load_prompt(name: str, *variables: str, folder: Path = FOLDER) -> Prompt:
    """Read `<folder>/<name>.txt`, whose variables must be exactly these.

    Raises `PromptError` naming the file and what is wrong with it.
    """
    path = folder / f"{name}.txt"
    if not NAME.match(name) or not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.txt")))
        raise PromptError(f"no prompt {name!r} in {folder}; there is: {known}")
    content = path.read_text(encoding="utf-8")
    parts = content.split("\n---\n")
    if len(parts) != 3:
        raise PromptError(f"{path}: a prompt is a head, a static text and a text with variables, parted by '---' lines")
    head = dict(line.split(": ", 1) for line in parts[0].splitlines() if ": " in line)
    named = set(head.get("variables", "").split(", "))
    used = set(VARIABLE.findall(parts[2]))
    if not named == used == set(variables):
        raise PromptError(
            f"{path}: uses the variables {sorted(used)}, names {sorted(named)} and has to have {sorted(variables)}"
        )
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Prompt(f"{name}@{digest}", parts[1].strip(), parts[2].strip())
