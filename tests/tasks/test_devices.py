"""Devices and the choice of matrix products."""

from typing import Any

import pytest
import torch

from penumbra.tasks.devices import fast_cpu_matmul

AMD = {"avx512_f": True, "cpu_name": "AMD EPYC"}
PRODUCTS: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cpu", "taken"),
    [
        (AMD, "bf16"),
        (AMD | {"cpu_name": "Intel(R) Xeon(R)"}, "none"),
        (AMD | {"amx_tile": True}, "none"),
        (AMD | {"avx512_f": False}, "none"),
        ({"cpu_name": "Apple M4"}, "none"),
    ],
)
def test_onednn_is_used_where_mkl_is_slow(cpu: dict[str, Any], taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu)
    with fast_cpu_matmul(torch.device("cpu")):
        assert PRODUCTS.fp32_precision == taken
    assert PRODUCTS.fp32_precision == "none"
    with fast_cpu_matmul(torch.device("meta")):
        assert PRODUCTS.fp32_precision == "none"


@pytest.mark.parametrize("shapes", [((640, 384), (384, 1536)), ((128, 31, 32), (128, 32, 31))])
def test_products_keep_float32_precision(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """On this CPU, whichever it is: numbers of bfloat16 would be a hundred times as far off."""
    torch.manual_seed(0)
    left, right = (torch.randn(shape) for shape in shapes)
    exact = left.double() @ right.double()
    with fast_cpu_matmul(torch.device("cpu")):
        found = left @ right
    assert (found - exact).abs().max() < 3e-7 * exact.abs().max() * shapes[0][-1] ** 0.5
