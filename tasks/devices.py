"""What a device is called where people see it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_name(device: "torch.device") -> str:
    """`the CPU`, or `cuda:0 (NVIDIA H200)`."""
    if device.type == "cpu":
        return "the CPU"
    if device.type != "cuda":
        return str(device)
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    return f"cuda:{index} ({torch.cuda.get_device_name(index)})"
