"""The training loop: epochs, evaluation, early stopping, and checkpoints that a killed run goes on from.

A run that was killed and started again ends with the same numbers as one that was not: weights, optimiser, random
states and the order of the data are all in the checkpoint or follow from seed and epoch.
"""

import ctypes
import json
import platform
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import broadcast_object_list, gather
from torch import Tensor, nn

from penumbra.artifacts.errors import PenumbraError
from penumbra.models.checkpoints import CheckpointError, load_weights
from penumbra.tasks.devices import device_of, fast_cpu_matmul
from penumbra.tasks.grounding.batches.examples import Examples, Features
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.base import Prediction, TrainingData
from penumbra.tasks.grounding.metrics import align, retrieval_metrics, score_queries
from penumbra.tasks.grounding.runs import SETTINGS
from penumbra.tasks.grounding.training.checkpoints import (
    Checkpoint,
    RunError,
    optimiser_tensors,
    read_checkpoint,
    restore_optimiser,
    write_checkpoint,
)
from penumbra.tasks.grounding.training.logs import Observer, Progress, Row, unobserved
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.progress import counting

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # names in malloc.h
NEVER = 2**31 - 1


def keep_memory() -> bool:
    """Stop glibc from giving memory back for the rest of the process; whether that could be said."""
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(MMAP_MAX, 0) and library.mallopt(TRIM_THRESHOLD, NEVER))


def make_optimiser(
    groups: list[dict[str, Any]], learning_rate: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """AdamW over groups of weights (`System.parameters`), in one fused kernel where the device has one."""
    fused = groups[0]["params"][0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, learning_rate, betas, weight_decay=weight_decay, fused=fused)


class TrainingStep:
    """Calls add up to training; `objective` (`System.objective`) may be compiled, or wrapped for several devices."""

    def __init__(self, objective: Any, optimiser: Any, clip_norm: float, backward: Any = torch.Tensor.backward) -> None:
        self.objective, self.optimiser, self.clip_norm, self.backward = objective, optimiser, clip_norm, backward

    def __call__(self, batch: Any) -> dict[str, Tensor]:
        """Train on a batch; returns the total, each term and the gradient's norm, on the device."""
        total, terms = self.objective(batch)
        self.backward(total)
        norm = nn.utils.clip_grad_norm_(self.objective.parameters(), self.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {"total": total.detach(), "gradient_norm": norm.detach(), **terms}


CHECKPOINTS = ("last", "best")


@dataclass(frozen=True)
class Job:
    """Training and validation queries with their features (on the CPU), the settings, and the run's folder.

    `truth` gives the windows of the validation queries in seconds. `weights` are those to start from.
    """

    settings: Settings
    train: Examples
    validation: Examples
    truth: dict[str, list[list[float]]]
    videos: Features
    texts: Features
    folder: Path
    weights: dict[str, torch.Tensor] | None = None

    def described(self) -> str:
        """The settings and the features' widths as JSON, written beside the checkpoints."""
        widths = {"video": self.videos.channels, "text": self.texts.channels}
        return json.dumps({"settings": self.settings.model_dump(mode="json"), "features": widths}, indent=1)


def judge(predictions: list[Prediction], truth: dict[str, list[list[float]]], settings: Settings) -> dict[str, float]:
    """Retrieval metrics of the validation queries, and under "chosen_by" what the best epoch is chosen by."""
    known = {p.qid: p.windows.tolist() for p in predictions if truth.get(p.qid)}
    windows = align(known, {qid: truth[qid] for qid in known}).until(settings.ranking.truth_ends)
    figures = retrieval_metrics(score_queries(windows))
    chosen_by = settings.training.chosen_by
    total = figures["R1@0.5"] + figures["R1@0.7"] + figures["mIoU"]
    figures["chosen_by"] = total if chosen_by == "sum" else figures[chosen_by]
    return figures


def held_out_videos(videos: list[str], share: float, seed: int) -> set[str]:
    """Videos to validate on, drawn by seed: whole videos, so that no validation video is trained on."""
    distinct = sorted(set(videos))
    count = min(len(distinct) - 1, round(share * len(distinct)))
    if share and len(distinct) > 1:
        count = max(count, 1)
    chosen = np.random.default_rng(seed).permutation(len(distinct))[: max(count, 0)]
    return {distinct[i] for i in chosen}


LOOK_EVERY = 100  # steps between two looks at the losses: each waits for the device


class TrainingError(PenumbraError):
    """Training can't go on; the message says at which step and where the last good checkpoint is."""


class Trainer:
    """A run on this process's device; `accelerator` ties the processes of a run together, the main one is observed."""

    def __init__(self, job: Job, accelerator: Accelerator, observe: Observer = unobserved) -> None:
        self.job, self.accelerator, self.observe = job, accelerator, observe
        s = job.settings.training
        torch.manual_seed(s.seed)  # the same first weights in every process
        self.system = system_of(job.settings)
        self.model = self.system.build(job.videos.channels, job.texts.channels)
        if job.weights is not None:
            _start_from(self.model, job.weights)
        self.model.to(accelerator.device).train()
        self.optimiser = make_optimiser(self.system.parameters(self.model), s.learning_rate, s.weight_decay, s.betas)
        self.data = self._on_device(job.train)
        self.validation = self._on_device(job.validation) if accelerator.is_main_process else None
        self.epoch, self.step_number, self.history = 0, 0, list[Row]()
        self.best, self.waited = -torch.inf, 0
        torch.manual_seed(s.seed * accelerator.num_processes + accelerator.process_index + 1)
        self._resume()
        self.resumed, self.started = self.epoch, time.perf_counter()
        objective, optimiser = accelerator.prepare(self.system.objective(self.model), self.optimiser)
        if s.compiled != "no":
            objective = torch.compile(objective, mode=s.compiled)
        self.step = TrainingStep(objective, optimiser, s.clip_norm, accelerator.backward)

    def _on_device(self, examples: Examples) -> TrainingData:
        return self.system.data(examples, self.job.videos, self.job.texts, self.accelerator.device)

    # -- an epoch ----------------------------------------------------------------------------------------------

    def run(self) -> list[Row]:
        """Train to the end; returns the rows of the `metrics` table, without the run's name."""
        s = self.job.settings.training
        if not s.epochs:
            self._save(improved=True)  # someone else's weights, to predict with
        while self.epoch < s.epochs and self.waited < s.patience:
            self.run_epoch()
        return self.history

    def run_epoch(self) -> None:
        """One pass over the training queries, evaluation when it is due, and a checkpoint."""
        s, started = self.job.settings.training, time.perf_counter()
        rate = s.learning_rate * 0.1 ** s.drops(self.epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["scale"]
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        seen: list[dict[str, Tensor]] = []
        sums: dict[str, float] = {}
        batches = [rows[rank::world] for rows in self.data.batches(s.seed, self.epoch) if len(rows) >= world]
        tick = counting("steps", s.epochs * len(batches), before=self.epoch * len(batches), whole=True)
        for number, rows in enumerate(batches, 1):
            seen.append(self.step(self.data.batch(rows)))
            tick(1)
            if len(seen) == LOOK_EVERY or number == len(batches):
                self._look(seen, sums)
        self.epoch += 1
        means = {name: total / len(batches) for name, total in sums.items()}
        self._log("train", {**means, "learning_rate": rate, "seconds": time.perf_counter() - started})
        due = self.epoch % s.evaluate_every == 0 or self.epoch == s.epochs
        self._save(improved=self._judge() if due else False)
        if due and self.accelerator.is_main_process:
            self._tell()

    def _look(self, seen: list[dict[str, Tensor]], sums: dict[str, float]) -> None:
        """Add up the losses of the last steps; raises `TrainingError` naming the first step that is no number."""
        names = sorted(set().union(*seen))
        rows = torch.stack(
            [torch.stack([step.get(name, step["total"] * 0).float() for name in names]) for step in seen]
        )
        values = rows.cpu()
        bad = ~torch.isfinite(values[:, names.index("total")])
        if bad.any():
            step = self.step_number + int(bad.nonzero()[0, 0]) + 1
            raise TrainingError(
                f"the loss is no number at step {step} (epoch {self.epoch + 1}): stopped; the last good checkpoint, of "
                f"epoch {self.epoch}, is kept in {self.job.folder}. Try a smaller learning_rate, or float32."
            )
        self.step_number += len(seen)
        for name, total in zip(names, values.double().sum(0).tolist(), strict=True):
            sums[name] = sums.get(name, 0.0) + total
        seen.clear()

    def _judge(self) -> bool:
        """Evaluate on the validation queries; whether this epoch is the best so far. All processes agree."""
        answer = [False, self.best]
        if self.validation is not None and len(self.validation):
            found = self.system.predict(self.model, self.validation)
            figures = judge(found, self.job.truth, self.job.settings)
            self._log("validation", figures)
            answer = [figures["chosen_by"] > self.best, max(self.best, figures["chosen_by"])]
        elif self.validation is not None:
            answer = [True, self.best]  # nothing to choose by: the last epoch is the best
        improved, self.best = broadcast_object_list(answer) if self.accelerator.num_processes > 1 else answer
        self.waited = 0 if improved else self.waited + 1
        return bool(improved)

    def _tell(self) -> None:
        """Tell who watches how far this is."""
        seconds, settings = time.perf_counter() - self.started, self.job.settings.training
        epochs = settings.epochs
        best = None if self.best == -torch.inf else self.best
        left = seconds / (self.epoch - self.resumed) * (epochs - self.epoch)
        self.observe(Progress(self.epoch, epochs, list(self.history), best, seconds, left, settings.chosen_by))

    def _log(self, split: str, values: dict[str, float]) -> None:
        self.history += [
            {"epoch": self.epoch, "step": self.step_number, "split": split, "name": name, "value": float(value)}
            for name, value in sorted(values.items())
        ]

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _save(self, improved: bool) -> None:
        states = self._random_states()
        if not self.accelerator.is_main_process:
            return
        weights = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        moments = {f"optimiser.{n}": value for n, value in optimiser_tensors(self.model, self.optimiser).items()}
        state = {
            "epoch": self.epoch,
            "step": self.step_number,
            "best": None if self.best == -torch.inf else self.best,
            "waited": self.waited,
            "processes": self.accelerator.num_processes,
            "history": self.history,
        }
        if improved:
            write_checkpoint(self.job.folder, "best", Checkpoint(weights, state))
        write_checkpoint(self.job.folder, "last", Checkpoint(weights | moments | states, state))

    def _random_states(self) -> dict[str, Tensor]:
        """The random state of every process's CPU and, where it has one, GPU."""
        device = self.accelerator.device
        own = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(device)
        if self.accelerator.num_processes == 1:
            return {f"random.{kind}": value[None] for kind, value in own.items()}
        gathered = {kind: cast(Tensor, gather(value[None].to(device))).cpu() for kind, value in own.items()}
        return {f"random.{kind}": value for kind, value in gathered.items()}

    def _agree(self, found: Checkpoint | None) -> None:
        """Raise `RunError` unless all processes go on from the same checkpoint: hosts may see different folders."""
        own = -1 if found is None else int(found.state["step"])
        steps = (
            gather(torch.tensor([own], device=self.accelerator.device)) if self.accelerator.num_processes > 1 else None
        )
        if steps is not None and len(set(steps.tolist())) > 1:
            raise RunError(
                f"hosts see different checkpoints in {self.job.folder}: let PENUMBRA_RUNS be a folder that all share"
            )

    def _resume(self) -> None:
        found = read_checkpoint(self.job.folder, "last")
        self._agree(found)
        if found is None:
            return
        if found.state["processes"] != self.accelerator.num_processes:
            raise RunError(
                f"{self.job.folder} was begun with {found.state['processes']} processes: go on with as many, or take "
                "the folder away"
            )
        load_weights(self.model, found.part("model."))
        restore_optimiser(self.model, self.optimiser, found.part("optimiser."))
        rank = self.accelerator.process_index
        states = found.part("random.")
        torch.set_rng_state(states["cpu"][rank])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"][rank], self.accelerator.device)
        self.epoch, self.step_number = found.state["epoch"], found.state["step"]
        self.history, self.waited = found.state["history"], found.state["waited"]
        self.best = -torch.inf if found.state["best"] is None else found.state["best"]


def _start_from(model: nn.Module, weights: dict[str, Tensor]) -> None:
    try:
        load_weights(model, weights)
    except CheckpointError as error:
        raise TrainingError(str(error)) from None


def train(job: Job, observe: Observer = unobserved) -> list[Row]:
    """Train to the end in this process, or as one of several that were started together; returns the metrics."""
    keep_memory()
    device = device_of(job.settings.training.device)
    # a loss that is switched off leaves weights without a gradient, and gradients would wait for them
    parallel = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=device.type == "cpu", kwargs_handlers=[parallel])
    if accelerator.is_main_process:
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / SETTINGS).write_text(job.described(), encoding="utf-8")
        for draft in job.folder.glob(".*"):
            draft.unlink() if draft.is_file() else shutil.rmtree(draft)
    accelerator.wait_for_everyone()
    trainer = Trainer(job, accelerator, observe)
    with fast_cpu_matmul(accelerator.device, trainer.system.has_static_shapes):
        return trainer.run()
