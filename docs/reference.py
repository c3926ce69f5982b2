"""Generate the reference pages from the code: parameters, tables, the command, presets, deployments, grids.

`docs/hooks.py` adds them to the site. They are not committed.
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

import pyarrow as pa
import typer
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from penumbra.artifacts.locations import DEPLOYMENTS
from penumbra.artifacts.schemas import TABLES
from penumbra.flows.commands import app
from penumbra.flows.parameter_help import type_name
from penumbra.flows.registry import FLOWS, flow_of
from penumbra.tasks.grounding import ablation
from penumbra.tasks.grounding.training.presets import presets

LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "at least", "pattern": "like"}
WRITTEN = "*Generated from the code when this site is built.*"
Row = tuple[str, ...]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, with line breaks and bars in cells escaped."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    cells.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def code(value: Any) -> str:
    """Return a default as it is typed after `--param NAME=`."""
    if value in (PydanticUndefined, inspect.Parameter.empty):
        return "*required*"
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True)
    return f"`{json.dumps(value, default=str, ensure_ascii=False)}`"


def first_line(thing: Any) -> str:
    """Return the first paragraph of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


# Parameters


@dataclass
class Group:
    """The fields of a parameter group; `tag` selects it among the members of a union."""

    name: str
    about: str
    tag: str = ""
    rows: list[Row] = field(default_factory=list)


def bare(annotation: Any) -> tuple[Any, list[FieldInfo]]:
    """Return a type without its annotations, and those annotations that are pydantic's."""
    annotation = getattr(annotation, "__value__", annotation)  # of an alias, `type X = …`
    if get_origin(annotation) is Annotated:
        inner, *notes = get_args(annotation)
        kind, more = bare(inner)
        return kind, more + [note for note in notes if isinstance(note, FieldInfo)]
    return annotation, []


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the parameter groups in a type: one, the members of a union, or the items of a list."""
    kind, _ = bare(annotation)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [] if get_origin(kind) is Literal else [model for inner in get_args(kind) for model in models_in(inner)]


def tag_of(model: type[BaseModel]) -> str:
    """Return the literal that distinguishes a member of a union, as in `name: qd_detr`."""
    said = ((name, bare(info.annotation)[0]) for name, info in model.model_fields.items())
    return ", ".join(
        f"{name}: {' or '.join(map(str, get_args(kind)))}" for name, kind in said if get_origin(kind) is Literal
    ).split(", ")[0]


def groups_of(
    name: str, annotation: Any, default: Any, known: Mapping[type[BaseModel], str] = MappingProxyType({})
) -> Iterator[Group]:
    """Yield the groups below a parameter: one, or one for each member of a union, followed by nested unions.

    A nested group whose heading is in `known` is linked and not repeated.
    """
    models = models_in(annotation)
    for model in models:
        own = default if isinstance(default, model) else None
        group = Group(name, first_line(model), tag_of(model) if len(models) > 1 else "")
        nested: list[Group] = []
        _fill(group, nested, name, model, own, known)
        yield group
        yield from nested


def _fill(
    group: Group,
    nested: list[Group],
    prefix: str,
    model: type[BaseModel],
    own: BaseModel | None,
    known: Mapping[type[BaseModel], str],
) -> None:
    for name, info in model.model_fields.items():
        path, inner = f"{prefix}.{name}", models_in(info.annotation)
        value = getattr(own, name) if own else info.get_default(call_default_factory=True)
        listed = get_origin(bare(info.annotation)[0]) in (tuple, list, dict)
        if len(inner) == 1 and inner[0] in known:
            group.rows.append((f"`{path}.…`", "", "", f"As [`{known[inner[0]]}`](#{known[inner[0]]})."))
            continue
        if len(inner) == 1 and not listed:
            if value is None:
                group.rows.append((f"`{path}`", "", "`null`", info.description or ""))
            _fill(group, nested, path, inner[0], value if isinstance(value, inner[0]) else None, known)
            continue
        kind = (
            " or ".join(tag_of(kind) or kind.__name__ for kind in inner) if inner else f"`{type_name(info.annotation)}`"
        )
        group.rows.append((f"`{path}`", kind + _limits(info), code(value), info.description or ""))
        if listed and len(inner) == 1:
            _fill(group, nested, f"{path}[]", inner[0], None, known)
        elif inner:
            nested += groups_of(path, info.annotation, value, known)


def _limits(info: FieldInfo) -> str:
    said = [
        f"{sign} {getattr(limit, name)}"
        for limit in info.metadata
        for name, sign in LIMITS.items()
        if getattr(limit, name, None) is not None and name != "pattern"
    ]
    return ", " + ", ".join(said) if said else ""


def parameters_page() -> str:
    """Return the page of all parameters: each group once, with the flows that use it."""
    users: dict[tuple[str, str], list[str]] = {}
    places: dict[tuple[str, str], tuple[str, Any, Any]] = {}
    lines = ["# Parameters", WRITTEN, __doc_of_parameters__, "## The flows"]
    for flow_name in FLOWS:
        flow = flow_of(flow_name)
        rows: list[Row] = []
        for name, parameter in inspect.signature(flow.fn).parameters.items():
            _, notes = bare(parameter.annotation)
            about = next((note.description for note in notes if note.description), "")
            if models_in(parameter.annotation):
                place = (name, repr(parameter.annotation))
                users.setdefault(place, []).append(flow_name)
                places.setdefault(place, (name, parameter.annotation, parameter.default))
                rows.append((f"[`{name}`](#{name})", "", "", about or _about(models_in(parameter.annotation))))
            else:
                kind = f"`{type_name(parameter.annotation)}`"
                rows.append((f"`{name}`", kind, code(parameter.default), about))
        lines += [f"### {flow_name}", first_line(flow.fn), table(("parameter", "type", "default", ""), rows)]
    known = {model: name for name, annotation, _ in places.values() for model in models_in(annotation)}
    for place, (name, annotation, default) in places.items():
        lines += [f"## {name}", f"Used by {', '.join(f'`{user}`' for user in users[place])}."]
        for group in groups_of(name, annotation, default, known):
            lines += [f"### {group.name} with {group.tag}" if group.tag else "", group.about]
            lines.append(table(("parameter", "type", "default", "what it does"), group.rows))
    return "\n\n".join(line for line in lines if line) + "\n"


def _about(models: Sequence[type[BaseModel]]) -> str:
    return first_line(models[0]) if len(models) == 1 else f"One of {', '.join(map(tag_of, models))}."


__doc_of_parameters__ = (
    "As in `penumbra run FLOW DATASET --param NAME=VALUE`, and in the form of the Prefect UI. The defaults are the "
    "code's; the data set's [deployment](deployments.md) or a [preset](presets.md) may override them, and explicit "
    "parameters override both. `penumbra run FLOW --help` prints the same in a terminal."
)


# Tables


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
    """Return the page of the columns of all tables."""
    lines = [
        "# Tables",
        WRITTEN,
        "Types are Arrow's; times are seconds; a window is `[start, end]`; `D` is the width "
        "of an encoder's features. Columns contain no null unless the type says so.",
    ]
    for stage, (row, columns) in TABLES.items():
        rows = [
            (f"`{name}`", f"`{arrow_name(it.type)}`{', or null' if it.nullable else ''}", it.description)
            for name, it in columns.items()
        ]
        lines += [f"## {stage}", f"A row is {row}.", table(("column", "type", ""), rows)]
    return "\n\n".join(lines) + "\n"


# The command


def command_page() -> str:
    """Return the page of the console command with all arguments and options."""
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


# What ships as YAML


def presets_page() -> str:
    """Return the page of the presets."""
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
    """Return the page of the deployments with their schedules."""
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
    """Return the page of the grids of `penumbra ablation`."""
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
