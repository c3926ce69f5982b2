"""Print the size of the project: lines, files, parameters, and how much of it one query and one training step enter.

Run it with `make count`.
"""

import ast
import inspect
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jedi
from pydantic import BaseModel

PROJECT = Path(__file__).resolve().parents[1]
OUTSIDE = ("tests", "bench", "workshop")  # counted separately
START, LOSSES = "models/detr.py", "models/losses.py"
EDITED = "tasks/text/masks.py"
ACTIONS = ("a person opens", "a man closes", "a woman takes")
SENTENCES = [f"{action} the {noun}." for action in ACTIONS for noun in ("door", "box", "bag")]
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
EXCEPTION = re.compile(r"^class \w+\(.*(?:Error|Exception)\b.*\):", re.MULTILINE)


def sources() -> dict[Path, str]:
    """Return the Python files that git tracks or does not ignore, with their content."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split()
    return {Path(name): (PROJECT / name).read_text(encoding="utf-8") for name in listed if (PROJECT / name).is_file()}


def parameters(flow: str) -> list[tuple[str, str]]:
    """Return the class and the name of each parameter of a flow; a union of groups counts each of its members."""
    from penumbra.flows.parameters import groups_of
    from penumbra.flows.registry import flow_of

    def fields(group: type[BaseModel]) -> Iterator[tuple[str, str]]:
        for name, info in group.model_fields.items():
            inner = groups_of(info.annotation)
            for each in inner:
                yield from fields(each)
            if not inner:
                owner = next(kind for kind in group.__mro__ if name in vars(kind).get("__annotations__", {}))
                yield owner.__name__, name

    found: list[tuple[str, str]] = []
    for parameter in inspect.signature(flow_of(flow).fn).parameters.values():
        groups = groups_of(parameter.annotation)
        found += [field for group in groups for field in fields(group)] or [(flow, parameter.name)]
    return found


def entered() -> tuple[int, int, int]:
    """Return how many files and functions `penumbra.build_negatives` of nine sentences enters, and blocks of code.

    Bodies of classes, and comprehensions, which are functions of their own in Python 3.11 only, are blocks as well.
    """
    entered = set[CodeType]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        entered.update([frame.f_code] if event == "call" else [])

    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PENUMBRA_ARTIFACTS=folder, PREFECT_HOME=f"{folder}/prefect", HF_HUB_OFFLINE="1")
        import penumbra

        threading.setprofile(note)
        sys.setprofile(note)
        penumbra.build_negatives(SENTENCES)
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    folders = [folder for folder in PROJECT.iterdir() if folder.is_dir() and folder.name not in OUTSIDE]
    inside = tuple(f"{folder}{os.sep}" for folder in folders)
    code = {(os.path.realpath(it.co_filename), it.co_qualname): it for it in entered if it.co_name != "<module>"}
    ours = {place: it for place, it in code.items() if place[0].startswith(inside) and f"{os.sep}." not in place[0]}
    functions = [it for it in ours.values() if it.co_flags & inspect.CO_OPTIMIZED and it.co_name not in COMPREHENSIONS]
    return len({file for file, _ in ours}), len(functions), len(ours)


def imported(start: Path, files: dict[Path, str]) -> set[Path]:
    """Return the project's files that a file imports, and those that these import."""
    found, queue = set[Path](), [start]
    while queue:
        file = queue.pop()
        if file in files and file not in found:
            found.add(file)
            for node in ast.walk(ast.parse(files[file])):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module, *(f"{node.module}.{name}" for name in names)]
                ours = [name.split(".")[1:] for name in names if name.startswith("penumbra.")]
                queue += [Path(*parts).with_suffix(".py") for parts in ours]
    return found


def resolved(file: str) -> tuple[int, int]:
    """Return how many of a file's imports of the project lead an editor to a file, and how many there are."""
    script = jedi.Script(path=PROJECT / "penumbra" / file, project=jedi.Project(PROJECT))
    lines = (PROJECT / file).read_text(encoding="utf-8").splitlines()
    imports = [(n, line.split()[1]) for n, line in enumerate(lines, 1) if line.startswith("from penumbra.")]
    found = [script.goto(n, len("from ") + len(module)) for n, module in imports]
    return sum(any(name.module_path for name in names) for names in found), len(imports)


def main() -> None:
    """Print each figure on a line."""
    number, functions, blocks = entered()  # before anything of the project is imported
    from penumbra.flows.registry import FLOWS

    files = sources()
    inside = {file: text for file, text in files.items() if file.parts[0] not in OUTSIDE}
    lines, count = Counter[str](), Counter[str]()
    for file, text in files.items():
        parts = file.parts[: 2 if file.parts[0] == "tasks" and len(file.parts) > 2 else 1]
        for name in {"/".join(parts), *(["all outside tests/, bench/ and workshop/"] if file in inside else [])}:
            lines[name] += len(text.splitlines())
            count[name] += 1
    for name in sorted(lines):
        print(f"{name}: {lines[name]:,} lines of Python in {count[name]} files")
    by_flow = {flow: parameters(flow) for flow in FLOWS}
    distinct = {place for places in by_flow.values() for place in places}
    print(f"parameters: {len(distinct)} distinct;", ", ".join(f"{flow} {len(own)}" for flow, own in by_flow.items()))
    print(f"penumbra.build_negatives of nine sentences enters {number} files and {functions} functions", end=" ")
    print(f"({blocks} with bodies of classes and comprehensions)")
    reached = imported(Path(START), files) | imported(Path(LOSSES), files)
    print(f"{START} to its last loss and matching: {len(reached)} files")
    print(f"go-to-definition on the imports of {EDITED}: {' of '.join(map(str, resolved(EDITED)))}")
    print(f"exception classes: {sum(len(EXCEPTION.findall(text)) for text in inside.values())}")
    print(f"# fmt: skip: {sum(text.count('# fmt: skip') for text in inside.values())}")


if __name__ == "__main__":
    main()
