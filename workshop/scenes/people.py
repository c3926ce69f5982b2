"""Pictures of agents: who it is, which way it looks, how it stands, steps, sits and reaches."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from workshop.scenes.sprites import Shape, Sprite, Style, Transform, draw, parse

HEIGHTS = {"man": 41.0, "woman": 39.0, "boy": 31.0, "girl": 31.0, "robot": 38.0}  # pixels from the soles to the crown
DRAWN = 40.0  # the height that the drawings below are made for
ARM = 16.0
SHOULDER = 25.0
HIP = 13.0

_TORSO = {
    "man": "p -5.4 13 5.4 13 6 27 -6 27",
    "woman": "p -7.5 8 7.5 8 4.6 19 5.2 27 -5.2 27 -4.6 19",
    "boy": "p -5.6 13 5.6 13 6 27 -6 27; b -5.8 19 5.8 21.5 light",
    "girl": "p -8 9 8 9 4.6 19 5.2 27 -5.2 27 -4.6 19; b -6 11 6 13 light",
    "robot": "b -6.5 13 6.5 27 grey; b -4 16 4 24; e 0 20 1.6 1.6 white",
}
_HEAD = {
    "front": "e 0 33 5.6 6 {skin}; e -2.1 33 .8 1 black; e 2.1 33 .8 1 black; l -1.6 30 1.6 30 .9 brown",
    "side": "e 0 33 5.6 6 {skin}; e 5.6 32.2 1.5 1.2 {skin}; e 3 33.4 .8 1.1 black; l 2.4 30 4.4 30 .9 brown",
    "back": "e 0 33 5.6 6 {skin}",
}
_HAIR = {
    ("man", "front"): "p -5.8 34 -5 38.5 0 40.5 5 38.5 5.8 34 4 37 -4 37 {hair}",
    ("man", "side"): "p -5.8 31 -5.4 38 0 40.5 5 38.5 5 36.5 -1 36.5 -2.6 31 {hair}",
    ("man", "back"): "e 0 34.2 5.8 5.8 {hair}",
    ("woman", "front"): "p -6.4 24 -6.6 36 0 40.8 6.6 36 6.4 24 4.6 24 4.6 35.5 0 37.6 -4.6 35.5 -4.6 24 {hair}",
    ("woman", "side"): "p -6.8 23 -6.4 37 0 40.8 5 38 4 36 -.6 36 -2 23 {hair}",
    ("woman", "back"): "p -6.4 23 -6.6 36 0 40.8 6.6 36 6.4 23 {hair}",
}
_ROBOT_HEAD = {
    "front": "b -5.5 28 5.5 38 grey; b -4 31.5 -1 35 yellow; b 1 31.5 4 35 yellow; l 0 38 0 41 1; e 0 41.5 1.3 1.3",
    "side": "b -5 28 5 38 grey; b 1.6 31.5 4.6 35 yellow; l 0 38 0 41 1; e 0 41.5 1.3 1.3",
    "back": "b -5.5 28 5.5 38 grey; l -3 31 3 31 1 black; l -3 33.5 3 33.5 1 black; l 0 38 0 41 1; e 0 41.5 1.3 1.3",
}
_CHILD_HEAD = 1.18  # a child's head is larger for its height


@dataclass(frozen=True)
class Body:
    """Who it is, so far as it can be seen."""

    kind: str
    colour: str
    skin: str = "skin"
    hair: str = "brown"

    @property
    def height(self) -> float:
        """Pixels from the soles to the crown."""
        return HEIGHTS[self.kind]


@dataclass(frozen=True)
class Posture:
    """How it holds itself.

    Attributes:
        view: front, side or back
        stride: angle of the step, in degrees; 0 stands
        sits: on a seat or on the floor
        hands: the two hands, in pixels of the drawing from the middle of the soles
        crouch: how much of its height it gives up
        lean: how far the head is ahead of the feet, in pixels

    """

    view: str = "front"
    stride: int = 0
    sits: str | None = None
    hands: tuple[tuple[int, int], tuple[int, int]] = ((-8, 12), (8, 12))
    crouch: int = 0
    lean: int = 0
    kick: int = 0


REST = Posture()


def _scaled_head(text: str, share: float) -> str:
    """A head's drawing made larger around the chin."""
    parts = []
    for shape in parse(text):
        numbers = list(shape.numbers)
        heights = range(1, len(numbers), 2) if shape.kind == "p" else (1, 3) if shape.kind in "bl" else (1,)
        grown = [27.5 + (n - 27.5) * share if i in heights else n * share for i, n in enumerate(numbers)]
        parts.append(" ".join([shape.kind, *(f"{n:.2f}" for n in grown), shape.paint]))
    return "; ".join(parts)


def _head(body: Body, view: str) -> str:
    if body.kind == "robot":
        return _ROBOT_HEAD[view]
    hair = _HAIR[{"boy": "man", "girl": "woman"}.get(body.kind, body.kind), view]
    text = f"{_HEAD[view]}; {hair}".format(skin=body.skin, hair=body.hair)
    return _scaled_head(text, _CHILD_HEAD) if body.kind in ("boy", "girl") else text


def _legs(body: Body, posture: Posture) -> str:
    bare = body.kind in ("woman", "girl")
    paint = "grey" if body.kind == "robot" else body.skin if bare else "dark"
    if posture.sits == "floor":
        feet = "e -13 13 2 2.4 black; e 13 13 2 2.4 black"
        return f"l -3 {HIP} -12 {HIP - 1} 3.4 {paint}; l 3 {HIP} 12 {HIP - 1} 3.4 {paint}; {feet}"
    if posture.sits:
        return "; ".join(
            f"l {side} {HIP} {side * 1.3} {HIP - 2} 3.6 {paint}; l {side * 1.3} {HIP - 2} {side * 1.3} 4 3.2 {paint};"
            f"e {side * 1.4} 3.6 2.2 1.6 black"
            for side in (-4, 4)
        )
    legs = []
    for side, angle in ((-1, posture.stride), (1, -posture.stride)):
        swing = math.radians(angle + (posture.kick if side == 1 else 0))
        u, v = side * 2.7 + 12 * math.sin(swing), 13.5 - 12.5 * math.cos(swing)
        legs += [f"l {side * 2.7} {HIP} {u:.1f} {v + 1:.1f} 3.4 {paint}", f"e {u + 0.8:.1f} {v + 1:.1f} 2.4 1.5 black"]
    return "; ".join(legs)


def _arm(side: int, hand: tuple[int, int], body: Body) -> str:
    shoulder = (side * 5.6, SHOULDER)
    du, dv = hand[0] - shoulder[0], hand[1] - shoulder[1]
    length = max(math.hypot(du, dv), 1e-6)
    share = min(1.0, ARM / length)
    u, v = shoulder[0] + du * share, shoulder[1] + dv * share
    sleeve = "grey" if body.kind == "robot" else "dark"
    palm = "black" if body.kind == "robot" else body.skin
    return f"l {shoulder[0]} {shoulder[1]} {u:.1f} {v:.1f} 2.6 {sleeve}; e {u:.1f} {v:.1f} 1.9 1.9 {palm}"


def _bent(text: str, posture: Posture) -> tuple[Shape, ...]:
    shapes = parse(text)
    if not posture.crouch and not posture.lean:
        return shapes
    return tuple(_bend(shape, posture) for shape in shapes)


def _bend(shape: Shape, posture: Posture) -> Shape:
    """Lower what is above the hips and move it ahead."""
    numbers = list(shape.numbers)
    pairs = range(0, len(numbers), 2) if shape.kind == "p" else (0, 2) if shape.kind in "bl" else (0,)
    for i in pairs:
        if numbers[i + 1] > HIP:
            numbers[i] += posture.lean * (numbers[i + 1] - HIP) / (DRAWN - HIP)
        numbers[i + 1] *= 1 - posture.crouch / DRAWN
    return Shape(shape.kind, tuple(numbers), shape.paint)


def _mirrored(sprite: Sprite) -> Sprite:
    left = -(sprite.left + sprite.alpha.shape[1])
    return Sprite(sprite.colour[:, ::-1], sprite.alpha[:, ::-1], left, sprite.top)


@lru_cache(maxsize=5_000)
def _trunk(body: Body, posture: Posture, facing: int) -> Sprite:
    """All but the arms."""
    text = "; ".join([_legs(body, posture), _TORSO[body.kind], _head(body, posture.view)])
    sprite = draw(_bent(text, posture), Style(body.colour), Transform(scale=body.height / DRAWN))
    return _mirrored(sprite) if facing < 0 else sprite


@lru_cache(maxsize=20_000)
def _arms(body: Body, posture: Posture, facing: int) -> Sprite:
    text = "; ".join(_arm(side, hand, body) for side, hand in zip((-1, 1), posture.hands, strict=True))
    sprite = draw(_bent(text, posture), Style(body.colour), Transform(scale=body.height / DRAWN))
    return _mirrored(sprite) if facing < 0 else sprite


def pictures(body: Body, posture: Posture, facing: int) -> tuple[Sprite, Sprite]:
    """The pictures of an agent, the hindmost first; `facing` is 1 to the right and -1 to the left."""
    trunk = _trunk(body, replace(posture, hands=REST.hands), facing)
    arms = _arms(body, Posture(hands=posture.hands, crouch=posture.crouch, lean=posture.lean), facing)
    return (arms, trunk) if posture.view == "back" else (trunk, arms)
