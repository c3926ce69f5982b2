"""The training loop: epochs, evaluation, early stopping, and checkpoints from which a killed run continues.

A run that is killed and started again gives the same numbers as an uninterrupted run. Several processes, started by
`accelerate launch` or `torchrun`, train together: each takes a share of every batch.
"""

import atexit
import ctypes
import json
import os
import platform
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState
from accelerate.utils import broadcast_object_list, gather
from torch import Tensor, nn

from penumbra.models.checkpoints import CheckpointError, load_weights
from penumbra.tasks.devices import device_of, fast_cpu_matmul
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.configs import Training
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import Prediction
from penumbra.tasks.grounding.metrics import align, means, retrieval_scores
from penumbra.tasks.grounding.runs import SETTINGS, RunError
from penumbra.tasks.grounding.training.checkpoints import (
    Checkpoint,
    optimiser_tensors,
    read_checkpoint,
    read_weights,
    restore_optimiser,
    write_checkpoint,
)
from penumbra.tasks.grounding.training.logs import Observer, Row, best_of
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.progress import counting

GRAPH_FROM = 3  # the third batch of a shape is captured as a graph
LOOK_EVERY = 100  # steps between two checks of the losses, because each check waits for the device


def validation_metrics(
    predictions: list[Prediction], truth: dict[str, list[list[float]]], settings: Settings
) -> dict[str, float]:
    """Return the retrieval metrics of the validation queries, and "chosen_by", the value that selects the best epoch.

    `truth` holds the windows of the queries in seconds, by qid.
    """
    known = {p.qid: p.windows.tolist() for p in predictions if truth.get(p.qid)}
    windows = align(known, {qid: truth[qid] for qid in known}).until(settings.ranking.truth_ends)
    metrics = means(retrieval_scores(windows))
    chosen_by = settings.training.chosen_by
    total = metrics["R1@0.5"] + metrics["R1@0.7"] + metrics["mIoU"]
    return {**metrics, "chosen_by": total if chosen_by == "sum" else metrics[chosen_by]}


def with_fresh_head(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights to start from, with the model's new existence head if `weights` have none."""
    own = {name: value for name, value in model.state_dict().items() if "existence_head." in name}
    return {**({} if own.keys() & weights.keys() else own), **weights}


def keep_memory() -> None:
    """Stop glibc from returning freed memory to the system for the rest of this process.

    glibc returns blocks above 32 MB and requests them again, so that the memory of each large activation is zeroed page
    by page, which takes longer than the arithmetic (70 ms against 1 ms for a ReLU over 12,000 × 1,024 numbers).
    """
    if library := glibc():
        mmap_max, trim_threshold, never = -4, -1, 2**31 - 1  # see malloc.h
        library.mallopt(mmap_max, 0)
        library.mallopt(trim_threshold, never)


def return_memory() -> None:
    """Return freed memory to the system, because after `keep_memory` small fragments accumulate with every epoch."""
    if library := glibc():
        library.malloc_trim(0)


def glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc" else None


def make_optimiser(groups: list[dict[str, Any]], config: Training) -> torch.optim.AdamW:
    """Return AdamW over groups of weights (`System.parameters`), as one fused kernel if the device has one."""
    device = groups[0]["params"][0].device.type
    fast = {"fused": device in ("cpu", "cuda"), "capturable": device == "cuda"}
    return torch.optim.AdamW(groups, config.learning_rate, config.betas, weight_decay=config.weight_decay, **fast)


class TrainingStep:
    """Training step: forward, losses, backward, clipping, optimiser; it never waits for the device."""

    def __init__(self, objective: Any, optimiser: Any, clip_norm: float, backward: Any = torch.Tensor.backward) -> None:
        self.objective, self.optimiser, self.clip_norm, self.backward = objective, optimiser, clip_norm, backward

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        """Train on a batch; return the total loss, each term and the gradient's norm, on the device."""
        total, terms = self.objective(batch)
        self.backward(total)
        norm = nn.utils.clip_grad_norm_(self.objective.parameters(), self.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {"total": total.detach(), "gradient_norm": norm.detach(), **terms}


class GraphedStep:
    """Training step on a GPU that replays a CUDA graph from the third batch with the same shapes and learning rate.

    The host takes 20 to 120 ms to launch the 1,600 kernels of a step, which run for 4 to 14 ms on an H200. A replay
    launches all of them at once and gives the same numbers. The step must not wait for the device.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.step, self.pool, self.seen = step, torch.cuda.graph_pool_handle(), Counter[Any]()
        self.graphs = dict[Any, tuple[torch.cuda.CUDAGraph, list[Tensor], dict[str, Tensor]]]()

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        values = [value for part in batch for value in vars(part).values()]
        rates = [group["lr"] for group in self.step.optimiser.param_groups]
        key = (*rates, *((value.shape, value.dtype) if isinstance(value, Tensor) else value for value in values))
        self.seen[key] += 1
        if self.seen[key] < GRAPH_FROM:
            return self.step(batch)
        if key not in self.graphs:
            self.graphs[key] = self._captured(batch)
        graph, inputs, results = self.graphs[key]
        for kept, value in zip(inputs, filter(torch.is_tensor, values), strict=True):
            kept.copy_(value)
        graph.replay()
        return {name: value.clone() for name, value in results.items()}

    def _captured(self, batch: Any) -> tuple[torch.cuda.CUDAGraph, list[Tensor], dict[str, Tensor]]:
        """Return a graph of the step, its input tensors, and its result tensors."""
        own = [
            {name: it.clone() if isinstance(it, Tensor) else it for name, it in vars(part).items()} for part in batch
        ]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            results = self.step(tuple(replace(part, **values) for part, values in zip(batch, own, strict=True)))
        return graph, [it for values in own for it in values.values() if isinstance(it, Tensor)], results


class Trainer:
    """Training on this process's device; `accelerator` connects the processes, and the main one calls `observe`."""

    def __init__(
        self,
        settings: Settings,
        training: Examples,
        validation: Examples,
        folder: Path,
        accelerator: Accelerator,
        observe: Observer,
    ) -> None:
        self.settings, self.folder, self.accelerator, self.observe = settings, folder, accelerator, observe
        config = settings.training
        self.device = accelerator.device if accelerator.num_processes > 1 else device_of()
        torch.manual_seed(config.seed)  # the same first weights in every process
        self.system = system_of(settings)
        self.model = self.system.build(training.videos.channels, training.texts.channels)
        if config.start_from:
            try:
                load_weights(self.model, with_fresh_head(self.model, read_weights(config.start_from)))
            except CheckpointError as error:
                raise RunError(str(error)) from None
        self.model.to(self.device).train()
        self.optimiser = make_optimiser(self.system.parameters(self.model), config)
        videos, texts = training.videos.to(self.device), training.texts.to(self.device)  # one copy for both
        self.data = self.system.data(replace(training, videos=videos, texts=texts), self.device)
        self.truth = {row["qid"]: row["windows"] for row in validation.rows}
        self.validation: Any = None
        if accelerator.is_main_process:
            self.validation = self.system.data(replace(validation, videos=videos, texts=texts), self.device)
        self.epoch, self.step_number, self.history = 0, 0, list[Row]()
        self.waited = 0  # evaluations since the best one
        torch.manual_seed(config.seed * accelerator.num_processes + accelerator.process_index + 1)
        self._resume()
        self.resumed, self.started = self.epoch, time.perf_counter()
        objective, optimiser = accelerator.prepare(self.system.objective(self.model), self.optimiser)
        step = TrainingStep(objective, optimiser, config.clip_norm, accelerator.backward)
        # several windows of a query are matched on the host, which a CUDA graph can't do
        fixed = self.system.has_static_shapes and accelerator.num_processes == 1 and training.windows.shape[1] == 1
        self.step = GraphedStep(step) if fixed and self.device.type == "cuda" else step

    def run(self) -> list[Row]:
        """Train until the last epoch or early stopping; return the rows of the table `metrics` without `run`."""
        config = self.settings.training
        if not config.epochs:
            self._save(improved=True)  # the weights of start_from
        while self.epoch < config.epochs and self.waited < config.patience:
            self.run_epoch()
        return self.history

    def run_epoch(self) -> None:
        config, started = self.settings.training, time.perf_counter()
        learning_rate = config.learning_rate_at(self.epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate * group["scale"]
        world, number = self.accelerator.num_processes, self.accelerator.process_index
        batches = [rows[number::world] for rows in self.data.batches(config.seed, self.epoch) if len(rows) >= world]
        tick = counting("steps", config.epochs * len(batches), before=self.epoch * len(batches))
        pending: list[dict[str, Tensor]] = []
        sums: dict[str, float] = {}
        for place, rows in enumerate(batches, 1):
            pending.append(self.step(self.data.batch(rows)))
            tick(1)
            if len(pending) == LOOK_EVERY or place == len(batches):
                self._add_losses(pending, sums)
        self.epoch += 1
        means = {name: total / len(batches) for name, total in sums.items()}
        self._record("train", {**means, "learning_rate": learning_rate, "seconds": time.perf_counter() - started})
        due = self.epoch % config.evaluate_every == 0 or self.epoch == config.epochs
        self._save(improved=self._evaluate() if due else False)
        if due and self.accelerator.is_main_process:
            seconds = time.perf_counter() - self.started
            left = seconds / (self.epoch - self.resumed) * (config.epochs - self.epoch)
            self.observe(list(self.history), seconds, left)
        return_memory()

    def _add_losses(self, pending: list[dict[str, Tensor]], sums: dict[str, float]) -> None:
        """Add the losses of the last steps to the sums; raise `RunError` naming the first step whose loss is NaN."""
        names = sorted(set().union(*pending))
        rows = [torch.stack([step.get(name, step["total"] * 0).float() for name in names]) for step in pending]
        values = torch.stack(rows).cpu()
        bad = ~torch.isfinite(values[:, names.index("total")])
        if bad.any():
            step = self.step_number + int(bad.nonzero()[0, 0]) + 1
            raise RunError(
                f"the loss is not a finite number at step {step} (epoch {self.epoch + 1}); the checkpoint of epoch "
                f"{self.epoch} is kept in {self.folder}. Try a smaller learning_rate, or precision=float32."
            )
        self.step_number += len(pending)
        for name, total in zip(names, values.double().sum(0).tolist(), strict=True):
            sums[name] = sums.get(name, 0.0) + total
        pending.clear()

    def _evaluate(self) -> bool:
        """Evaluate on the validation queries; return whether this epoch is the best so far, in every process."""
        improved = True  # without validation queries the last epoch is the best
        if self.validation is not None and len(self.validation):
            best, predictions = best_of(self.history), self.system.predict(self.model, self.validation)
            metrics = validation_metrics(predictions, self.truth, self.settings)
            self._record("validation", metrics)
            improved = best is None or metrics["chosen_by"] > best["value"]
        [improved] = broadcast_object_list([improved])
        self.waited = 0 if improved else self.waited + 1
        return bool(improved)

    def _record(self, split: str, values: dict[str, float]) -> None:
        self.history += [
            {"epoch": self.epoch, "step": self.step_number, "split": split, "name": name, "value": float(value)}
            for name, value in sorted(values.items())
        ]

    def _save(self, improved: bool) -> None:
        random_states = self._random_states()
        if not self.accelerator.is_main_process:
            return
        weights = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        moments = {f"optimiser.{n}": value for n, value in optimiser_tensors(self.model, self.optimiser).items()}
        best = best_of(self.history)
        state = {
            "epoch": self.epoch,
            "step": self.step_number,
            "best": best and best["value"],
            "waited": self.waited,
            "processes": self.accelerator.num_processes,
            "history": self.history,
        }
        if improved:
            write_checkpoint(self.folder, "best", Checkpoint(weights, state))
        write_checkpoint(self.folder, "last", Checkpoint(weights | moments | random_states, state))

    def _random_states(self) -> dict[str, Tensor]:
        """Return the random state of every process's CPU and GPU [processes, bytes]."""
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.device)
        return {f"random.{k}": cast(Tensor, gather(value[None].to(self.device))).cpu() for k, value in own.items()}

    def _resume(self) -> None:
        """Continue from the last checkpoint, if there is one; raise `RunError` if the processes read different ones."""
        last, processes = read_checkpoint(self.folder, "last"), self.accelerator.num_processes
        step = torch.tensor([-1 if last is None else int(last.state["step"])], device=self.device)
        if len(set(cast(Tensor, gather(step)).tolist())) > 1:
            raise RunError(f"hosts read different checkpoints in {self.folder}: PENUMBRA_RUNS must be shared")
        if last is None:
            return
        if last.state["processes"] != processes:
            raise RunError(
                f"{self.folder} was begun with {last.state['processes']} processes: continue with the same number, "
                "or remove the folder"
            )
        load_weights(self.model, last.part("model."))
        restore_optimiser(self.model, self.optimiser, last.part("optimiser."))
        states, number = last.part("random."), self.accelerator.process_index
        torch.set_rng_state(states["cpu"][number])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"][number], self.device)
        self.epoch, self.step_number = last.state["epoch"], last.state["step"]
        self.history, self.waited = last.state["history"], last.state["waited"]


def train(
    settings: Settings, training: Examples, validation: Examples, folder: Path, observe: Observer = lambda *_: None
) -> list[Row]:
    """Train in this process, alone or as one of several; return the rows of the table `metrics` without `run`."""
    keep_memory()
    # a loss that is switched off leaves weights without a gradient, for which DDP would wait
    parallel = DistributedDataParallelKwargs(find_unused_parameters=True)
    several, device = int(os.environ.get("WORLD_SIZE", "1")) > 1, device_of()
    # accelerate keeps the device of a process's first training, so a single process places tensors itself
    on_cpu = several and device.type == "cpu"
    accelerator = Accelerator(cpu=on_cpu, device_placement=several, kwargs_handlers=[parallel])
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        widths = {"video": training.videos.channels, "text": training.texts.channels}
        described = {"settings": settings.model_dump(mode="json"), "features": widths}
        (folder / SETTINGS).write_text(json.dumps(described, indent=1), encoding="utf-8")
        for draft in folder.glob(".*"):
            draft.unlink() if draft.is_file() else shutil.rmtree(draft)
    accelerator.wait_for_everyone()
    trainer = Trainer(settings, training, validation, folder, accelerator, observe)
    with fast_cpu_matmul(trainer.device, trainer.system.has_static_shapes):
        history = trainer.run()
    if accelerator.num_processes > 1:
        accelerator.wait_for_everyone()  # a process that ends early would close connections that others still use
        atexit.register(PartialState().destroy_process_group)
    return history
