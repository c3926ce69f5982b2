"""Generate the reference pages, and add them and the files of the repository's root to the site (a hook of mkdocs)."""

import inspect
import re
from collections.abc import Iterable, Sequence

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from typer.cli import get_docs_for_click

from penumbra.artifacts.locations import DEPLOYMENTS, PROJECT
from penumbra.artifacts.schemas import TABLES
from penumbra.flows.commands import app
from penumbra.flows.parameters import parameters_of
from penumbra.flows.registry import FLOWS, flow_of
from penumbra.tasks.grounding import ablation
from penumbra.tasks.grounding.training.presets import PRESETS

WRITTEN = "*Generated from the code when this site is built.*"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, with line breaks and bars in cells escaped."""
    cells = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    cells.insert(1, ["---"] * len(header))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


PARAMETERS = (
    "As in `penumbra run FLOW DATASET --param NAME=VALUE`, and in the form of the Prefect UI. The defaults are the "
    "code's; the data set's [deployment](deployments.md) or a [preset](presets.md) may override them, and explicit "
    "parameters override both. `penumbra run FLOW --help` prints the same in a terminal."
)


def parameters_page() -> str:
    """Return the page of all parameters: each group once, with the flows that have it."""
    lines = ["# Parameters", WRITTEN, PARAMETERS, "## The flows"]
    users: dict[str, dict[str, None]] = {}  # group → flows
    groups: dict[str, dict[tuple[str, ...], None]] = {}  # group → rows of its table, each once
    for name in FLOWS:
        flow = flow_of(name)
        lines += [f"### {name}", (inspect.getdoc(flow.fn) or "").split("\n\n")[0]]
        for it in parameters_of(flow):
            group = re.split(r"\W", it.path)[0]
            users.setdefault(group, {})[name] = None
            if it.type:
                of = f"Of {', '.join(it.models)}. " if it.models else ""
                default = f"`{it.default}`" if it.default else "*required*"
                row = (f"`{it.path}`", f"`{it.type}`", default, of + it.description)
                groups.setdefault(group, {})[row] = None
        lines.append(", ".join(f"[`{group}`](#{group})" for group, having in users.items() if name in having))
    for group, rows in groups.items():
        lines += [f"## {group}", f"Used by {', '.join(f'`{user}`' for user in users[group])}."]
        lines.append(table(("parameter", "type", "default", "what it does"), rows))
    return "\n\n".join(lines) + "\n"


def tables_page() -> str:
    lines = [
        "# Tables",
        WRITTEN,
        "Types are Arrow's; times are seconds; a window is `[start, end]`; `D` is the width "
        "of an encoder's features. Columns contain no null unless the type says so.",
    ]
    for stage, (row, columns, _) in TABLES.items():
        rows = []
        for name, it in columns.items():
            kind = str(it.type).replace("item: ", "").replace("[0]", "[D]")
            rows.append((f"`{name}`", f"`{kind}`{', or null' if it.nullable else ''}", it.description))
        lines += [f"## {stage}", f"A row is {row}.", table(("column", "type", ""), rows)]
    return "\n\n".join(lines) + "\n"


def command_page() -> str:
    command = typer.main.get_command(app)
    docs = get_docs_for_click(obj=command, ctx=typer.Context(command), name="penumbra", title="The command")
    return docs.replace("\\[", "[")


FILES = {  # pages that show a file of settings as it is
    "reference/presets.md": (
        "# Presets\n\nThe papers' settings, by the value of `preset`. Only differences from the "
        "[defaults](parameters.md) are listed; `--param` overrides them.",
        PRESETS,
    ),
    "reference/deployments.md": (
        "# Deployments\n\nA deployment is addressed as `FLOW/DEPLOYMENT`. `penumbra run FLOW DATASET` starts from the "
        "parameters of the deployment of that name. Schedules are cron expressions in UTC.",
        DEPLOYMENTS,
    ),
    "reference/grids.md": (
        "# Grids\n\nThe rows that `penumbra ablation NAME DATASET` trains. A row is a set of changed parameters.",
        ablation.FILE,
    ),
}
PAGES = {
    "reference/parameters.md": parameters_page,
    "reference/tables.md": tables_page,
    "reference/command.md": command_page,
}
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINKED = ("LICENSE", "CITATION.cff", "models/README.md", "examples/*.ipynb")  # from README.md


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the root's pages, and the files that README.md links to; README.md is the first page."""
    pages = {name: page() for name, page in PAGES.items()}
    for name, (text, file) in FILES.items():
        pages[name] = f"{text}\n\n```yaml\n{file.read_text(encoding='utf-8')}```\n"
    for name in ROOT_PAGES:
        pages[name] = (PROJECT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    for path in [path for pattern in LINKED for path in PROJECT.glob(pattern)]:
        name = str(path.relative_to(PROJECT))
        files.append(File.generated(config, name, content=path.read_bytes(), inclusion=InclusionLevel.NOT_IN_NAV))
    return files
