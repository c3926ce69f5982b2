"""How the manner of an action shows: how its progress runs through its time, how often and how widely it swings."""

import math
from collections.abc import Callable

Easing = Callable[[float], float]  # share of the time -> share of the action, 0 to 1


def steady(time: float) -> float:
    """The same speed throughout."""
    return time


def smooth(time: float) -> float:
    """Soft at both ends."""
    return time * time * (3 - 2 * time)


def sudden(time: float) -> float:
    """Nothing for a while, then all at once."""
    return 0.0 if time < _WAIT else min((time - _WAIT) / (0.9 - _WAIT), 1.0)


def careful(time: float) -> float:
    """In three small steps, with a stop after each."""
    step, rest = divmod(min(time, 1 - 1e-9) * 3, 1)
    return (step + smooth(min(rest / 0.62, 1))) / 3


_WAIT = 0.4
EASINGS: dict[str | None, Easing] = {"suddenly": sudden, "carefully": careful, "gently": smooth}
RATES = {"slowly": 0.55, "carefully": 0.8, "gently": 0.9, "quickly": 2.8, "suddenly": 2.2}  # of what usually swings
AMPLITUDES = {"gently": 0.6, "suddenly": 1.15}


def easing(manner: str | None) -> Easing:
    """The easing of a manner."""
    return EASINGS.get(manner, steady)


def oscillation(manner: str | None, seconds: float, per_second: float) -> Callable[[float], float]:
    """-1 to 1 and back, so many times a second if it is done in no special manner; it begins and ends at 0."""
    times = max(round(seconds * per_second * RATES.get(manner or "", 1.0)), 1)
    width = AMPLITUDES.get(manner or "", 1.0)
    return lambda progress: width * math.sin(2 * math.pi * times * progress)


def repetitions(manner: str | None, seconds: float, per_second: float) -> int:
    """How many jumps, turns or bounces there are in that time."""
    return max(round(seconds * per_second * RATES.get(manner or "", 1.0)), 1)
