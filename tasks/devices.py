"""Where models are computed: the device that a setting names, and what it is called where people see it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MULTIPLE = 16  # of rows is a batch: so there are few sizes, and few rows are taken twice


def device_of(name: str) -> "torch.device":
    """The device that a name asks for; "auto" is a GPU where there is one, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)


@contextmanager
def fast_cpu_matmul(device: "torch.device", has_static_shapes: bool = True) -> Iterator[None]:
    """Inside, oneDNN makes this process's float32 products on a CPU where MKL, to which torch leaves them, is slow.

    MKL uses AVX-512 on Intel's CPUs alone: on an AMD EPYC 9005 it makes 93 GFLOP/s a core, oneDNN 203. torch has no
    word for "oneDNN"; the one that it has for "oneDNN, which may round to bfloat16" rounds on CPUs with AMX alone.

    oneDNN compiles a product anew for each shape, in some milliseconds and a megabyte that is not given back. So this
    is for batches that have few shapes (see `pad_batch`, and `System.has_static_shapes`).
    """
    import torch

    cpu = torch.cpu.get_capabilities() if device.type == "cpu" and has_static_shapes else {}
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made when torch is imported
    before = products.fp32_precision
    if cpu.get("avx512_f") and not cpu.get("amx_tile") and "Intel" not in cpu["cpu_name"]:
        products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


def pad_batch(rows: list[int], size: int) -> list[int]:
    """The rows of a batch, the last one repeated up to a multiple of sixteen, or to a full batch if that is smaller."""
    wanted = min(size, len(rows) + -len(rows) % MULTIPLE)
    return [*rows, *rows[-1:] * (wanted - len(rows))]


def attention_implementation(device: "torch.device") -> str | None:
    """Transformers' name of the attention that is fastest there for a query's dozen words; None for its own choice.

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
