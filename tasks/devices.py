"""Where models are computed: the device that a setting names, and what it is called where people see it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_of(name: str) -> "torch.device":
    """The device that a name asks for, made ready; "auto" is a GPU where there is one, else the CPU."""
    import torch

    wanted = name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(wanted)
    if device.type == "cpu":
        _multiply_with_onednn()
    return device


def _multiply_with_onednn() -> None:
    """Have oneDNN make the float32 products of this process where MKL, to which torch leaves them, is slow.

    MKL uses AVX-512 on Intel's CPUs alone: on an AMD EPYC 9005 it makes 93 GFLOP/s a core, oneDNN 203. torch has no
    word for "oneDNN"; the one that it has for "oneDNN, which may round to bfloat16" rounds on CPUs with AMX alone.
    """
    import torch

    cpu = torch.cpu.get_capabilities()
    if cpu.get("avx512_f") and not cpu.get("amx_tile") and "Intel" not in cpu["cpu_name"]:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]  # made at import


def attention_on(device: "torch.device") -> str | None:
    """transformers' name of the attention that is fastest there for a query's dozen words; None for its own choice.

    On a CPU it would choose flash attention, whose blocks are for many words: a quarter of an encoder's time.
    """
    return "eager" if device.type == "cpu" else None


def device_name(device: "torch.device") -> str:
    """`the CPU`, or `cuda:0 (NVIDIA H200)`."""
    if device.type == "cpu":
        return "the CPU"
    if device.type != "cuda":
        return str(device)
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    return f"cuda:{index} ({torch.cuda.get_device_name(index)})"
