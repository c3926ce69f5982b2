"""Print the size of the project: lines, files, parameters, and how much of it one query and one training step enter.

Run it with `make count`.
"""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, get_args

import jedi
from pydantic import BaseModel

PROJECT = Path(__file__).resolve().parents[1]
FOLDERS = ("artifacts", "flows", "models", "prompts", "tasks", "penumbra")
OUTSIDE = ("tests", "bench", "workshop")  # counted separately
START, LOSSES = "models/qd_detr.py", ("models/losses.py",)
ACTIONS = ("a person opens", "a man closes", "a woman takes")
SENTENCES = [f"{action} the {noun}." for action in ACTIONS for noun in ("door", "box", "bag")]


def python_files() -> list[Path]:
    """Return the Python files that git tracks, and those that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [Path(name) for name in listed if (PROJECT / name).is_file()]


def lines(files: list[Path]) -> int:
    """Return the number of lines of the files."""
    return sum(len((PROJECT / file).read_text(encoding="utf-8").splitlines()) for file in files)


def parameters(flow: str) -> list[tuple[str, str]]:
    """Return the class and the name of each parameter of a flow; a union of groups counts each of its members."""
    from penumbra.flows.registry import flow_of

    found: list[tuple[str, str]] = []
    for parameter in inspect.signature(flow_of(flow).fn).parameters.values():
        groups = list(_groups(parameter.annotation))
        found += [field for group in groups for field in _fields(group)] or [(flow, parameter.name)]
    return found


def _fields(group: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, info in group.model_fields.items():
        inner = list(_groups(info.annotation))
        for each in inner:
            yield from _fields(each)
        if not inner:
            owner = next(kind for kind in group.__mro__ if name in vars(kind).get("__annotations__", {}))
            yield owner.__name__, name


def _groups(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the groups of parameters that a type names, except those in a list."""
    if isinstance(annotation, type):
        if issubclass(annotation, BaseModel):
            yield annotation
    elif getattr(annotation, "__origin__", None) not in (list, tuple, dict):
        for inner in get_args(annotation):
            yield from _groups(inner)


def entered() -> tuple[int, int]:
    """Return the number of files and of functions that `penumbra.build_negatives` of nine sentences enters."""
    code = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code not in code:
            code.add(frame.f_code)

    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(PENUMBRA_ARTIFACTS=folder, PREFECT_HOME=f"{folder}/prefect", HF_HUB_OFFLINE="1")
        import penumbra

        threading.setprofile(note)
        sys.setprofile(note)
        penumbra.build_negatives(SENTENCES)
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    ours = {(os.path.realpath(it.co_filename), it.co_qualname) for it in code}
    ours = {(file, name) for file, name in ours if _is_ours(file) and name != "<module>"}
    return len({file for file, _ in ours}), len(ours)


def _is_ours(file: str) -> bool:
    return any(file.startswith(f"{PROJECT / folder}{os.sep}") for folder in FOLDERS)


def imported(start: Path) -> set[Path]:
    """Return the project's files that a file imports, and those that these import."""
    found: set[Path] = set()
    queue = [start]
    while queue:
        file = queue.pop()
        if file in found:
            continue
        found.add(file)
        for node in ast.walk(ast.parse((PROJECT / file).read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                path = Path(*name.split(".")[1:]).with_suffix(".py") if name.startswith("penumbra.") else None
                if path and (PROJECT / path).is_file():
                    queue.append(path)
    return found


def exceptions(files: list[Path]) -> list[str]:
    """Return the names of the exception classes."""
    parents: dict[str, list[str]] = {}
    for file in files:
        for node in ast.walk(ast.parse((PROJECT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]

    def is_exception(name: str) -> bool:
        kind = getattr(__builtins__, name, None) if isinstance(__builtins__, ModuleType) else __builtins__.get(name)
        if isinstance(kind, type):
            return issubclass(kind, BaseException)
        return any(is_exception(parent) for parent in parents.get(name, ()))

    return [name for name in parents if is_exception(name)]


def resolved(file: Path) -> tuple[int, int]:
    """Return how many of a file's imports of the project lead an editor to a file, and how many there are."""
    source = (PROJECT / file).read_text(encoding="utf-8")
    script = jedi.Script(source, path=PROJECT / "penumbra" / file, project=jedi.Project(PROJECT))
    nodes = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penumbra.")
    ]
    found = 0
    for node in nodes:
        line = source.splitlines()[node.lineno - 1]
        targets = script.goto(node.lineno, line.index(node.module.rpartition(".")[2]) + 1) if node.module else []
        found += any(target.module_path and _is_ours(os.path.realpath(target.module_path)) for target in targets)
    return found, len(nodes)


def main() -> None:
    """Print each figure on a line."""
    from penumbra.flows.registry import FLOWS

    files = python_files()
    inside = [file for file in files if file.parts[0] not in OUTSIDE]
    for name, some in (
        ("outside tests/, bench/ and workshop/", inside),
        *((f"{top}/", [it for it in files if it.parts[0] == top]) for top in OUTSIDE),
    ):
        print(f"{name}: {lines(some):,} lines of Python in {len(some)} files")
    for top in sorted(
        {
            "/".join(file.parts[: 2 if file.parts[0] == "tasks" and len(file.parts) > 2 else 1])
            for file in inside
            if len(file.parts) > 1
        }
    ):
        some = [
            file
            for file in inside
            if file.as_posix().startswith(f"{top}/") and (top != "tasks" or len(file.parts) == 2)
        ]
        print(f"    {top}: {lines(some):,} lines in {len(some)} files")
    all_parameters = {flow: parameters(flow) for flow in FLOWS}
    distinct = {place for places in all_parameters.values() for place in places}
    print(
        f"parameters: {len(distinct)} distinct; "
        + ", ".join(f"{flow} {len(places)}" for flow, places in all_parameters.items())
    )
    counted = subprocess.run(
        [sys.executable, "-c", "import json; from bench.count import entered; print(json.dumps(entered()))"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]
    number, functions = json.loads(counted)
    print(f"penumbra.build_negatives of nine sentences enters {number} files and {functions} functions")
    reached = imported(Path(START))
    reached |= {file for file in inside if file.as_posix().startswith(LOSSES)}
    for file in list(reached):
        reached |= imported(file)
    print(f"{START} to its last loss and matching: {len(reached)} files")
    print(f"exception classes: {len(exceptions(inside))}")
    print(
        "go-to-definition on the imports of tasks/text/masks.py: {} of {}".format(
            *resolved(Path("tasks/text/masks.py"))
        )
    )
    skips = sum(len(re.findall(r"# fmt: skip", (PROJECT / file).read_text(encoding="utf-8"))) for file in inside)
    print(f"# fmt: skip: {skips}")


if __name__ == "__main__":
    main()
