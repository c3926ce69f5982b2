"""Seconds of MMN's training step at Charades size, beside the same step written as plain loops, and its bare products.

python -m bench.mmn [--videos 16] [--steps 1] [--threads 2] [--device cpu]

Random features, 2.3 sentences a video; the published sizes (map of 16 clips, width 512, eight layers of 5 × 5). The
plain step pads the whole map at once, normalises that border too, and loops over videos and sentences (`plain_mmn`), as
the published code does. The paper's batches are of 48 videos: the more, the more convolutions by spectra gain.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from penumbra.models.losses.mmn import MMNLossSettings, mmn_losses
from penumbra.models.mmn import MMN
from penumbra.tasks.grounding.batches.examples import Features, prepare
from penumbra.tasks.grounding.families import mmn
from penumbra.tasks.grounding.families.base import autocast
from penumbra.tasks.grounding.families.mmn import MapData
from penumbra.tasks.grounding.training.loop import keep_memory, make_optimiser
from tests import plain_mmn

CLIPS, VIDEO, WORDS, TEXT, SENTENCES = 75, 1024, 16, 512, 7  # sentences of three videos


def made_up(videos: int, device: torch.device) -> MapData:
    """Videos of which every third has three sentences, the others two."""
    count = videos * SENTENCES // 3
    rows = [
        {
            "qid": str(n),
            "vid": str(n % videos),
            "query": str(n),
            "duration": 37.5,
            "windows": [[n % 20, n % 20 + 8.0]],
            "saliency": None,
        }
        for n in range(count)
    ]
    features = Features(
        torch.randn(videos * CLIPS, VIDEO), torch.arange(videos + 1) * CLIPS, {str(n): n for n in range(videos)}, 0.5
    )
    texts = Features(
        torch.randn(count * WORDS, TEXT), torch.arange(count + 1) * WORDS, {str(n): n for n in range(count)}
    )
    sizes = mmn.MMN().sizes(VIDEO, TEXT)
    return MapData(prepare(rows, {}, features, texts), features, texts, device, sizes, batch_size=videos)


def step(net: MMN, loss: Callable[[Any], Tensor], data: MapData, bf16: bool) -> Callable[[], None]:
    """A whole step: the batch, forward, losses, backward, clipping and AdamW."""
    optimiser = make_optimiser([{"params": list(net.parameters())}], 1e-4, 1e-5, (0.9, 0.99))

    def run() -> None:
        batch = data.batch(torch.arange(data.batch_size))
        with autocast(data.device, bf16):
            total = loss(batch)
        total.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return run


def convolutions(net: MMN, videos: int, device: torch.device, bf16: bool) -> tuple[Callable[[], Any], float]:
    """The layers' bare convolutions as torch makes them, forward and backward, and their GFLOP."""
    work, flop, size = [], 0.0, net.settings.clips
    for layer in net.proposals.layers:
        weight = layer.convolution.weight.detach().clone().requires_grad_()
        cells = torch.randn(videos, weight.shape[1], size, size, device=device).to(memory_format=torch.channels_last)
        size += 2 * layer.padding - weight.shape[2] + 1
        flop += 6 * videos * size**2 * weight.numel() / 1e9
        work.append((cells.requires_grad_(), weight, layer.padding))

    def run() -> None:
        for cells, weight, padding in work:
            with autocast(device, bf16):
                found = nn.functional.conv2d(cells, weight, padding=padding)
            torch.autograd.grad(found, (cells, weight), torch.ones_like(found))

    return run, flop


def seconds(work: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Median time of a call after one that warms up."""
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Print a line for each precision and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=16)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()
    device, losses = torch.device(options.device), MMNLossSettings()
    torch.manual_seed(0)
    data = made_up(options.videos, device)
    net = MMN(mmn.MMN().sizes(VIDEO, TEXT)).to(device)
    norms = plain_mmn.norms_of(net)
    print(f"MMN's training step, {options.videos} videos, {len(data)} sentences, {options.threads} threads, {device}")

    def ours(batch: Any) -> Tensor:
        return mmn_losses(net(batch[0]), batch[1], losses).total

    def plain(batch: Any) -> Tensor:
        return plain_mmn.total(plain_mmn.outputs(net, norms, batch[0]), batch[1], losses)

    for name, bf16, work in (
        ("plain loops, float32", False, step(net, plain, data, bf16=False)),
        ("float32", False, step(net, ours, data, bf16=False)),
        ("bf16 autocast", True, step(net, ours, data, bf16=True)),
    ):
        bare, flop = convolutions(net, options.videos, device, bf16)
        whole, products = seconds(work, options.steps, device), seconds(bare, options.steps, device)
        print(
            f"{name:22} {whole:7.3f} s a step   bare convolutions {products:7.3f} s ({flop:5.0f} GFLOP, "
            f"{flop / products:5.0f} GFLOP/s)   ratio {whole / products:5.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
