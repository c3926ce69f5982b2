"""What the tiny CLIP is taught beside CLIP's own loss, by heads that are thrown away after training."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workshop.tiny_clip.attributes import GROUPS
from workshop.tiny_clip.clips import Clip
from workshop.tiny_clip.model import SHARED, WIDTH
from workshop.tiny_clip.patches import AGENT, CHANGING, HUES, KINDS, NUMBERS, OF_AGENT, POSTURE, THING

RESTING = 0.1  # weight of patches that show nothing, as most do
SMALLEST = 0.03  # added to what a state's number deviates by
LARGEST = 6.0  # deviations; what is further off is taken to be that far
STIRRING = 0.5  # change of a thing, in deviations, from which it counts as moving


class Lessons(nn.Module):
    """Losses of clips: attributes, kinds and colours of patches, and the states of what is there.

    `deviations` [NUMBERS] are those of the states' numbers.
    """

    def __init__(self, deviations: Tensor) -> None:
        super().__init__()
        self.deviations = deviations
        self.attributes = nn.ModuleList(nn.Linear(SHARED, len(names)) for names in GROUPS.values())
        self.stirring = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, SHARED))
        self.patches = nn.ModuleList(nn.Linear(WIDTH, len(names)) for names in (KINDS, HUES))
        self.states, self.liveliest = nn.Linear(WIDTH, NUMBERS), nn.Linear(SHARED, NUMBERS)
        weights = [torch.ones(len(names)) for names in (KINDS, HUES)]
        for weight in weights:
            weight[0] = RESTING
        self.weights = weights

    def attributes_loss(self, clips: Tensor, attributes: Tensor) -> Tensor:
        """Cross-entropy of clips [B, SHARED] against what they show [B, events, groups], summed over the groups."""
        losses = []
        for group, head in enumerate(self.attributes):
            scores = functional.log_softmax(head(clips).float(), -1)
            losses.append(-scores.gather(1, attributes[:, :, group]).mean())
        return torch.stack(losses).sum()

    def stirring_loss(self, patches: Tensor, stirs: Tensor, attributes: Tensor) -> Tensor:
        """The same of the mean of the patches [B, K, WIDTH] that stir [B, K]: a short way to where things happen."""
        some = stirs.any(1)
        share = stirs[some].float() / stirs[some].sum(1, keepdim=True)
        means = (patches[some] * share[..., None]).sum(1)
        return self.attributes_loss(self.stirring(means), attributes[some])

    def names_loss(self, patches: Tensor, maps: Tensor) -> Tensor:
        """Cross-entropy of patches [B, K, WIDTH] against kinds and colours [B, K, 2]."""
        losses = [
            functional.cross_entropy(head(patches).flatten(0, 1).float(), maps[..., i].flatten(), weight)
            for i, (head, weight) in enumerate(zip(self.patches, self.weights, strict=True))
        ]
        return torch.stack(losses).sum()

    def states_loss(self, patches: Tensor, clips: Tensor, owners: Tensor, numbers: Tensor) -> Tensor:
        """Errors of the states [B, K, NUMBERS] of those in the patches, and of a clip's liveliest agent and thing."""
        true = (numbers.float() / self.deviations).clamp(-LARGEST, LARGEST)
        known = _known(owners == AGENT, owners == THING)
        of_patches = _mean_error(self.states(patches), true, known)
        rows = torch.arange(len(true))
        agents = (true[..., POSTURE:OF_AGENT].abs().sum(-1) + 1e-3) * (owners == AGENT)
        things = (true[..., -CHANGING:].abs().sum(-1) + 1e-3) * (owners == THING)
        agent, thing = agents.argmax(1), things.argmax(1)
        liveliest = torch.cat([true[rows, agent, :OF_AGENT], true[rows, thing, OF_AGENT:]], 1)
        known = _known(agents.amax(1) > 0, things.amax(1) > STIRRING)
        return of_patches + _mean_error(self.liveliest(clips), liveliest, known)


def _known(agents: Tensor, things: Tensor) -> Tensor:
    """Which numbers [..., NUMBERS] are known, where an agent's and where a thing's are [...]."""
    return torch.cat(
        [
            agents[..., None].expand(*agents.shape, OF_AGENT),
            things[..., None].expand(*things.shape, NUMBERS - OF_AGENT),
        ],
        -1,
    )


def _mean_error(found: Tensor, true: Tensor, known: Tensor) -> Tensor:
    """Mean smooth error of what is known, of agents and of things, added up."""
    errors = functional.smooth_l1_loss(found.float(), true, reduction="none") * known
    parts = [(errors[..., part].sum(), known[..., part].sum()) for part in (slice(OF_AGENT), slice(OF_AGENT, None))]
    return torch.stack([total / count.clamp(min=1) for total, count in parts]).sum()


def deviations(clips: list[Clip]) -> Tensor:
    """How much each number of a state deviates over some clips [NUMBERS]."""
    owners = np.stack([clip.states.owners for clip in clips])
    numbers = np.stack([clip.states.numbers for clip in clips]).astype(np.float32)
    parts = [numbers[owners == AGENT][:, :OF_AGENT].std(0), numbers[owners == THING][:, OF_AGENT:].std(0)]
    return torch.from_numpy(np.concatenate(parts) + np.float32(SMALLEST))
