"""Devices that models are computed on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

MULTIPLE = 16  # batches are padded to a multiple of this number: few different sizes, and few repeated rows


def device_of() -> "torch.device":
    """Return a GPU if there is one (CUDA_VISIBLE_DEVICES selects it, or hides it), otherwise the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def fast_cpu_matmul(device: "torch.device", has_static_shapes: bool = True) -> Iterator[None]:
    """Compute float32 matrix products with oneDNN on CPUs where MKL, torch's choice, is slow.

    MKL uses AVX-512 on Intel's CPUs only: on an AMD EPYC 9005 it has 93 GFLOP/s per core, oneDNN 203. The setting of
    torch that selects oneDNN also permits bfloat16, which oneDNN uses on CPUs with AMX: there MKL stays. oneDNN keeps
    a compiled kernel (1 MB) for each shape, so batches need few shapes (`pad_batch`, `System.has_static_shapes`).
    """
    import torch

    cpu = torch.cpu.get_capabilities() if device.type == "cpu" and has_static_shapes else {}
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # defined when torch is imported
    before = matmul.fp32_precision
    if cpu.get("avx512_f") and not cpu.get("amx_tile") and "Intel" not in cpu["cpu_name"]:
        matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def pad_batch(rows: list[int], size: int) -> list[int]:
    """Return the rows of a batch with the last one repeated up to a multiple of 16, or to a full batch of `size`."""
    wanted = min(size, len(rows) + -len(rows) % MULTIPLE)
    return [*rows, *rows[-1:] * (wanted - len(rows))]


def attention_implementation(device: "torch.device") -> str | None:
    """Return the attention for transformers: "eager" on a CPU, where it is fastest for short texts; None: default."""
    return "eager" if device.type == "cpu" else None
