"""Generate the reference pages, and add them and the files of the repository's root to the site (a hook of mkdocs)."""

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import typer
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from penumbra.artifacts.locations import DEPLOYMENTS, PROJECT
from penumbra.artifacts.schemas import TABLES
from penumbra.flows.commands import app
from penumbra.flows.parameters import parameters_of
from penumbra.flows.registry import FLOWS, flow_of
from penumbra.tasks.grounding import ablation
from penumbra.tasks.grounding.training.presets import presets

WRITTEN = "*Generated from the code when this site is built.*"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, with line breaks and bars in cells escaped."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    cells.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


PARAMETERS = (
    "As in `penumbra run FLOW DATASET --param NAME=VALUE`, and in the form of the Prefect UI. The defaults are the "
    "code's; the data set's [deployment](deployments.md) or a [preset](presets.md) may override them, and explicit "
    "parameters override both. `penumbra run FLOW --help` prints the same in a terminal."
)


def parameters_page() -> str:
    """Return the page of all parameters: each group once, with the flows that have it."""
    lines = ["# Parameters", WRITTEN, PARAMETERS, "## The flows"]
    users: dict[str, list[str]] = {}
    groups: dict[str, dict[tuple[str, ...], None]] = {}  # the rows of each group's table, each once
    for flow_name in FLOWS:
        flow = flow_of(flow_name)
        parameters = [it for it in parameters_of(flow) if it.type]
        names = dict.fromkeys(re.split(r"\W", it.path)[0] for it in parameters)
        lines += [f"### {flow_name}", first_line(flow.fn), ", ".join(f"[`{name}`](#{name})" for name in names)]
        for name in names:
            users.setdefault(name, []).append(flow_name)
        for it in parameters:
            of = f"Of {', '.join(it.models)}. " if it.models else ""
            default = f"`{it.default}`" if it.default else "*required*"
            row = (f"`{it.path}`", f"`{it.type}`", default, of + it.description)
            groups.setdefault(re.split(r"\W", it.path)[0], {})[row] = None
    for name, rows in groups.items():
        lines += [f"## {name}", f"Used by {', '.join(f'`{user}`' for user in users[name])}."]
        lines.append(table(("parameter", "type", "default", "what it does"), rows))
    return "\n\n".join(line for line in lines if line) + "\n"


def arrow_name(kind: pa.DataType) -> str:
    """Return a short name of an Arrow type: `list<str>`, `float16[D]`, `struct<start: float64, …>`."""
    if pa.types.is_fixed_size_list(kind):
        return f"{arrow_name(kind.value_type)}[{kind.list_size or 'D'}]"
    if pa.types.is_list(kind):
        return f"list<{arrow_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{inner.name}: {arrow_name(inner.type)}' for inner in kind)}>"
    return {"string": "str", "double": "float64", "float": "float32", "halffloat": "float16"}.get(str(kind), str(kind))


def tables_page() -> str:
    lines = [
        "# Tables",
        WRITTEN,
        "Types are Arrow's; times are seconds; a window is `[start, end]`; `D` is the width "
        "of an encoder's features. Columns contain no null unless the type says so.",
    ]
    for stage, (row, columns, _) in TABLES.items():
        rows = [
            (f"`{name}`", f"`{arrow_name(it.type)}`{', or null' if it.nullable else ''}", it.description)
            for name, it in columns.items()
        ]
        lines += [f"## {stage}", f"A row is {row}.", table(("column", "type", ""), rows)]
    return "\n\n".join(lines) + "\n"


def command_page() -> str:
    return "\n\n".join(["# The command", WRITTEN, *_command("penumbra", typer.main.get_command(app))]) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and "completion" not in p.name]
    if name != "penumbra":
        words = [p.metavar or p.name.upper() for p in arguments]
        yield f"## {name}"
        yield f"    {' '.join([name, *(w if p.required else f'[{w}]' for w, p in zip(words, arguments, strict=True))])}"
    yield inspect.cleandoc(command.help or "")
    rows = [
        (
            f"`{p.metavar or p.name.upper()}`" if p in arguments else " ".join(f"`{o}`" for o in p.opts),
            (p.help or "").replace("\\[", "["),
            "" if p.required or p.default in (None, False) else f"`{p.default}`",
        )
        for p in [*arguments, *options]
    ]
    if rows:
        yield table(("", "description", "default"), rows)
    for inner, below in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inner}", below)


def presets_page() -> str:
    lines = [
        "# Presets",
        WRITTEN,
        "The papers' settings, by the value of `preset`. Only differences from the "
        "[defaults](parameters.md) are listed; `--param` overrides them.",
    ]
    for name, groups in presets().items():
        said = yaml.safe_dump(groups, default_flow_style=None, sort_keys=False, allow_unicode=True, width=100)
        lines += [f"## {name}", f"```yaml\n{said}```"]
    return "\n\n".join(lines) + "\n"


def deployments_page() -> str:
    rows = []
    for deployment in yaml.safe_load(DEPLOYMENTS.read_text(encoding="utf-8"))["deployments"]:
        parameters = {name: value for name, value in deployment["parameters"].items() if name != "dataset"}
        schedules = [
            f"`{schedule['cron']}`{'' if schedule.get('active', True) else ' (off)'}"
            for schedule in deployment.get("schedules", ())
        ]
        said = f"`{json.dumps(parameters, ensure_ascii=False)}`" if parameters else ""
        place = f"`{deployment['tags'][0]}/{deployment['name']}`"
        rows.append((place, deployment["description"], said, ", ".join(schedules)))
    lines = [
        "# Deployments",
        WRITTEN,
        "A deployment is addressed as `FLOW/DEPLOYMENT`. `penumbra run FLOW DATASET` starts from "
        "the parameters of the deployment of that name. Schedules are cron expressions in UTC.",
        table(("deployment", "what it does", "parameters", "schedule"), rows),
    ]
    return "\n\n".join(lines) + "\n"


def grids_page() -> str:
    lines = [
        "# Grids",
        WRITTEN,
        "The rows that `penumbra ablation NAME DATASET` trains. A row is a set of changed parameters.",
    ]
    for name, grid in yaml.safe_load(ablation.FILE.read_text(encoding="utf-8")).items():
        rows = [
            (
                row["label"] + (" (on request)" if row.get("on_request") else ""),
                f"`{json.dumps(row['changes'], ensure_ascii=False)}`" if "changes" in row else "nothing",
            )
            for row in grid["rows"]
        ]
        every = f"Every row has `{json.dumps(grid['all'], ensure_ascii=False)}`." if "all" in grid else ""
        lines += [f"## {name}", f"{grid['title']}. {every}", table(("row", "what it changes"), rows)]
    return "\n\n".join(lines) + "\n"


PAGES = {
    "reference/parameters.md": parameters_page,
    "reference/tables.md": tables_page,
    "reference/command.md": command_page,
    "reference/presets.md": presets_page,
    "reference/deployments.md": deployments_page,
    "reference/grids.md": grids_page,
}
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINKED = ("LICENSE", "CITATION.cff", "models/README.md", "examples/*.ipynb")  # from README.md


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the root's pages, and the files that README.md links to; README.md is the first page."""
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    for name in ROOT_PAGES:
        text = (PROJECT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for path in [path for pattern in LINKED for path in PROJECT.glob(pattern)]:
        name = str(path.relative_to(PROJECT))
        files.append(File.generated(config, name, content=path.read_bytes(), inclusion=InclusionLevel.NOT_IN_NAV))
    return files
