"""Measure training steps at the papers' sizes and at the study's.

python -m bench.training [--steps 7] [--threads 2] [--device cpu]

A step has batch gathering, forward, losses, backward, clipping and AdamW, on random features of the largest sizes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import typer

from penumbra.tasks.devices import fast_cpu_matmul
from penumbra.tasks.grounding.batches.examples import Examples, Features, Loaded
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.training.loop import GraphedStep, TrainingStep, keep_memory, make_optimiser
from penumbra.tasks.grounding.training.presets import Settings, layered

BATCH = 32
CASES = (("moment_detr", False), ("qd_detr", False), ("qd_detr", True), ("moment_detr", True), ("bm_detr", False))
STUDIED: dict[str, dict[str, Any]] = {
    "study": {"losses": {"shine": False}},
    "study + SHINE": {"losses": {"shine": True}},
    "study + SHINE, one level a step": {"losses": {"shine": True}, "ablation": {"levels_a_step": 1}},
}


class Sizes(NamedTuple):
    """The largest numbers of clips and words, and the widths of their features."""

    clips: int
    video: int
    words: int
    text: int


CHARADES, STUDY = Sizes(75, 1024, 32, 512), Sizes(31, 256, 12, 384)


def made_up(sizes: Sizes) -> Examples:
    """Return one batch of queries of the largest size."""
    texts = {f"{query} {level}": 4 * query + level for query in range(BATCH) for level in range(4)}
    frames, states = torch.randn(BATCH * sizes.clips, sizes.video), torch.randn(len(texts) * sizes.words, sizes.text)
    videos = Features(frames, torch.arange(BATCH + 1) * sizes.clips, {str(n): n for n in range(BATCH)}, 0.5)
    words = Features(states, torch.arange(len(texts) + 1) * sizes.words, texts)
    shared = {"duration": sizes.clips / 2, "saliency": None}
    window = {n: [[n % 7, n % 7 + 8.0]] for n in range(BATCH)}
    rows = [{"qid": str(n), "vid": str(n), "query": f"{n} 0", "windows": window[n], **shared} for n in range(BATCH)]
    negatives = {str(n): {level: f"{n} {level}" for level in (1, 2, 3)} for n in range(BATCH)}
    in_video = {qid: list(levels.values()) for qid, levels in negatives.items()}
    return Loaded(videos, words, rows, negatives, in_video).examples_of(rows, "training")


def seconds(work: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def settings_of(model: str, shine: bool, bf16: bool) -> Settings:
    layers = {"encoder_layers": 3, "decoder_layers": 3, "shifting": True}
    deeper = {"ablation": layers} if model == "bm_detr" else {}
    losses = {"losses": {"shine": True}} if shine else {}
    inputs, training = {"longest_text": CHARADES.words}, {"precision": "bf16" if bf16 else "float32"}
    settings = {"model": {"name": model, **deeper, **losses}, "inputs": inputs, "training": training}
    return Settings.model_validate(settings)


def measure(name: str, settings: Settings, sizes: Sizes, steps: int, device: torch.device) -> None:
    torch.manual_seed(0)
    system = system_of(settings)
    data = system.data(made_up(sizes), device)
    net = system.build(sizes.video, sizes.text).to(device)
    objective: Any = system.objective(net)
    step: Any = TrainingStep(objective, make_optimiser(system.parameters(net), settings.training), 0.1)
    if device.type == "cuda" and system.has_static_shapes:
        step = GraphedStep(step)
    rows = torch.arange(BATCH)
    with fast_cpu_matmul(device, system.has_static_shapes):
        print(f"{name:48} {seconds(lambda: step(data.batch(rows)), steps, device):6.3f} s a step", flush=True)


def main(steps: int = 7, threads: int = 2, device: str = "cuda" if torch.cuda.is_available() else "cpu") -> None:
    """Print a line for each model and precision."""
    torch.set_num_threads(threads)
    keep_memory()
    print(f"Training step, {threads} threads, {device}")
    run = steps, torch.device(device)
    for model, shine in CASES:
        for bf16 in (False, True):
            name = f"{model}{' + SHINE' if shine else ''}, {'bf16 autocast' if bf16 else 'float32'}"
            measure(name, settings_of(model, shine, bf16), CHARADES, *run)
    torch.set_num_threads(1)
    for name, model in STUDIED.items():
        for grouped in (False, True):
            label = f"{name}, {'as trained' if grouped else 'without oneDNN'}, one thread"
            changes = {"model": model, "training": {"group_by_length": grouped}}
            measure(label, layered("charades-cg-simulated", changes), STUDY, *run)  # see `fast_cpu_matmul`


if __name__ == "__main__":
    typer.run(main)
