"""Draw small pictures from lines of text: shapes with a fill, a pattern and an outline.

A drawing is a string of shapes, each painted over the one before, separated by `;`:

    e u v ru rv [paint]          ellipse
    r u v outer inner [paint]    ring
    b u0 v0 u1 v1 [paint]        box
    p u v u v u v ... [paint]    polygon
    l u0 v0 u1 v1 width [paint]  line

Lengths are pixels; u is the distance to the right of the drawing's middle, v the height above its base. Paints are in
`PAINTS`; `main` (the default), `dark`, `light` and `mark` (a contrasting tone) follow the colour of the thing drawn.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from workshop.scenes.world import NOUNS

Grid = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Image = npt.NDArray[np.float32]  # rows, columns, red to blue: 0 to 255
Colour = tuple[float, float, float]

DRAWINGS = yaml.safe_load(Path(__file__).with_name("drawings.yaml").read_text(encoding="utf-8"))
COLOURS: dict[str, Colour] = DRAWINGS["colours"]
PAINTS: dict[str, Colour] = COLOURS | DRAWINGS["paints"]
SIDE = 160  # pixels of a frame, in both directions
WALL = 58  # the row where the wall ends and the floor begins
FINE = 3  # samples of a pixel in each direction
PALE = ("white", "yellow", "pink", "orange", "grey")  # colours with a dark mark


@dataclass(frozen=True, eq=False)
class Sprite:
    """A picture; `left` and `top` are its pixels from the anchor, the middle of the base."""

    colour: Image  # multiplied by alpha
    alpha: Image  # rows, columns, 1: 0 to 1
    left: int
    top: int


@dataclass(frozen=True)
class Style:
    """The colour of a drawing, a pattern over `main`, and the opacity."""

    colour: str
    pattern: str | None = None
    opacity: float = 1.0


def _mix(first: Colour, second: Colour, share: float) -> npt.NDArray[np.float64]:
    return np.array(first) * (1 - share) + np.array(second) * share


@cache
def paints(colour: str) -> dict[str, npt.ArrayLike]:
    """Return all paints on a thing of a colour."""
    main, mark = COLOURS[colour], (40, 40, 52) if colour in PALE else (250, 250, 250)
    dark = (58, 58, 64) if colour == "black" else _mix(main, (0, 0, 0), 0.32)
    light = (226, 228, 232) if colour == "white" else _mix(main, (255, 255, 255), 0.28)
    return {**PAINTS, "main": main, "mark": mark, "dark": dark, "light": light}


# patterns: the opacity of the mark (0 to 1) at a point, and its colour; None: the contrasting one
PATTERNS: dict[str, tuple[Callable[[Grid, Grid], Grid], Colour | None]] = {
    "wooden": (lambda u, v: np.float32(0.55) * ((v + 0.7 * np.sin(u * 0.6)) % 3.2 < 1.1), (58, 30, 10)),
    "metal": (lambda u, v: np.float32(0.7) * ((u + v) % 9 < 2.6), (255, 255, 255)),
    "striped": (lambda u, v: ((u + 100.9) % 5 < 1.9).astype(np.float32), None),
    "dotted": (
        lambda u, v: np.float32(1) * (((u + 2 * (np.floor(v / 4) % 2) + 100) % 4 - 2) ** 2 + (v % 4 - 2) ** 2 < 1.3),
        None,
    ),
    "straw": (lambda u, v: np.float32(0.55) * (((u + v) % 4 < 1) | ((u - v) % 4 < 1)), (96, 70, 20)),
}
_OTHER_MARKS: dict[tuple[str | None, str], Colour] = {  # a white sheen is invisible on white, dark wood on black
    **dict.fromkeys((("metal", "white"), ("metal", "grey")), (92, 98, 110)),
    **dict.fromkeys((("wooden", "black"), ("straw", "black")), (150, 112, 78)),
}


@dataclass(frozen=True)
class Shape:
    kind: str
    numbers: tuple[float, ...]
    paint: str

    def points(self) -> list[tuple[float, float]]:
        """Return the corners of a polygon, or two opposite corners of the box around another shape."""
        n = self.numbers
        if self.kind in "er":
            ru, rv = n[2], n[3 if self.kind == "e" else 2]
            return [(n[0] - ru, n[1] - rv), (n[0] + ru, n[1] + rv)]
        if self.kind == "l":
            half = n[4] / 2
            low, high = (min(n[0], n[2]), min(n[1], n[3])), (max(n[0], n[2]), max(n[1], n[3]))
            return [(low[0] - half, low[1] - half), (high[0] + half, high[1] + half)]
        return list(zip(n[::2], n[1::2], strict=True))

    def covers(self, u: Grid, v: Grid) -> Mask:
        n = self.numbers
        if self.kind == "e":
            return np.asarray(((u - n[0]) / max(n[2], 0.01)) ** 2 + ((v - n[1]) / max(n[3], 0.01)) ** 2 <= 1)
        if self.kind == "r":
            square = (u - n[0]) ** 2 + (v - n[1]) ** 2
            return (square <= n[2] ** 2) & (square >= n[3] ** 2)
        if self.kind == "b":
            return (u >= n[0]) & (u <= n[2]) & (v >= n[1]) & (v <= n[3])
        if self.kind == "l":
            du, dv = n[2] - n[0], n[3] - n[1]
            along = np.clip(((u - n[0]) * du + (v - n[1]) * dv) / max(du * du + dv * dv, 1e-6), 0, 1)
            return np.asarray((u - n[0] - along * du) ** 2 + (v - n[1] - along * dv) ** 2 <= (n[4] / 2) ** 2)
        inside, points = np.zeros(u.shape, bool), self.points()
        for (u0, v0), (u1, v1) in zip(points, points[1:] + points[:1], strict=True):
            if v0 != v1:
                inside ^= ((v0 > v) != (v1 > v)) & (u < (u1 - u0) * (v - v0) / (v1 - v0) + u0)
        return inside

    def mapped(self, point: Callable[[float, float], tuple[float, float]], size: float = 1.0) -> "Shape":
        count = len(self.numbers) if self.kind == "p" else 4 if self.kind in "bl" else 2
        pairs = zip(self.numbers[:count:2], self.numbers[1:count:2], strict=True)
        points = [number for u, v in pairs for number in point(u, v)]
        return replace(self, numbers=(*points, *(number * size for number in self.numbers[count:])))


@cache
def parse(drawing: str, opened: float = 0.0) -> tuple[Shape, ...]:
    """Return the shapes of a drawing; a number `shut>open` is between both."""
    shapes = []
    for kind, *words in (part.split() for part in drawing.split(";")):
        named = words.pop() if words[-1][-1].isalpha() else "main"
        ends = [[float(end) for end in word.split(">")] for word in words]
        shapes.append(Shape(kind, tuple(end[0] + (end[-1] - end[0]) * opened for end in ends), named))
    return tuple(shapes)


def extent(shapes: tuple[Shape, ...], *, light: bool = False) -> tuple[float, float, float, float]:
    """Return left, bottom, right and top in the drawing's own pixels, with or without light."""
    points = [point for shape in shapes if light or shape.paint != "glow" for point in shape.points()]
    u, v = zip(*points, strict=True)
    return min(u), min(v), max(u), max(v)


@lru_cache(maxsize=20_000)
def draw(
    shapes: tuple[Shape, ...], style: Style, *, scale: float = 1.0, angle: float = 0.0, squeeze: float = 1.0
) -> Sprite:
    """Return a picture of shapes, turned by `angle` (degrees) around the middle and squeezed horizontally."""
    _, bottom, _, top = extent(shapes)
    middle = (bottom + top) / 2 * scale
    left, low, right, high = (side * scale for side in extent(shapes, light=True))
    reach = max(-left, right)
    if angle:
        reach = float(np.hypot(reach, max(high - middle, middle - low)))
        low, high = middle - reach, middle + reach
    across, up, down = int(reach) + 2, int(high) + 2, max(int(-low) + 2, 2)  # pixels from the anchor to the edges
    columns = (np.arange(2 * across * FINE, dtype=np.float32) + 0.5) / FINE - across
    rows = -((np.arange((up + down) * FINE, dtype=np.float32) + 0.5) / FINE - up)
    u, v = np.meshgrid(columns, rows)
    if angle:
        cos, sin = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        u, v = u * cos + (v - middle) * sin, (v - middle) * cos - u * sin + middle
    u, v = (u / (scale * squeeze)).astype(np.float32), (v / scale).astype(np.float32)
    colour, alpha = _paint(shapes, style, u, v)
    fine = np.concatenate([colour * alpha, alpha], axis=2)
    small = fine.reshape(up + down, FINE, 2 * across, FINE, 4).mean((1, 3))
    return Sprite(small[..., :3], small[..., 3:], -across, -up)


def _paint(shapes: tuple[Shape, ...], style: Style, u: Grid, v: Grid) -> tuple[Image, Image]:
    colour = np.zeros((*u.shape, 3), np.float32)
    alpha = np.zeros((*u.shape, 1), np.float32)
    solid = np.zeros(u.shape, bool)
    for shape in shapes:
        mask = shape.covers(u, v)
        if shape.paint == "glow":
            mask &= ~solid
            colour[mask], alpha[mask] = PAINTS["glow"], 0.5
            continue
        is_main = shape.paint in ("main", "light")
        colour[mask], alpha[mask] = paints(style.colour)[shape.paint], style.opacity if is_main else 1.0
        if style.pattern and is_main:
            pattern, mark = PATTERNS[style.pattern]
            mark = _OTHER_MARKS.get((style.pattern, style.colour), mark or paints(style.colour)["mark"])
            share = pattern(u, v)[mask][:, None]
            colour[mask] = colour[mask] * (1 - share) + np.array(mark, np.float32) * share
        solid |= mask
    inner = solid.copy()
    for axis in (0, 1):
        inner &= np.roll(solid, 2, axis) & np.roll(solid, -2, axis)
    outline = solid & ~inner
    colour[outline], alpha[outline] = _mix(COLOURS[style.colour], (20, 16, 24), 0.72), 1.0
    return colour, alpha


def blit(image: Image, sprite: Sprite, x: int, y: int, top: int = 0, bottom: int = 1_000_000) -> None:
    """Paint a sprite with its anchor at (x, y), in pixels; only rows from `top` up to `bottom` are visible."""
    x0, y0 = x + sprite.left, y + sprite.top
    rows, columns = sprite.alpha.shape[:2]
    left, right = max(x0, 0), min(x0 + columns, image.shape[1])
    top, bottom = max(y0, top, 0), min(y0 + rows, bottom, image.shape[0])
    if left < right and top < bottom:
        inner = (slice(top - y0, bottom - y0), slice(left - x0, right - x0))
        part = image[top:bottom, left:right]
        part *= 1 - sprite.alpha[inner]
        part += sprite.colour[inner]


@dataclass(frozen=True)
class Places:
    """Where another thing's base is placed, in pixels above this one's base."""

    on: float = 0
    width: float = 0  # of the room under it
    room: float = 0  # its height
    behind: float = 0  # the edge that hides the lower part of a thing behind it
    inside: float = 0
    rim: float | None = None  # the edge that hides the lower part of a thing in it; None: nothing is hidden
    seat: float = 0
    middle: float = 0  # how far these places are to the right of its middle


STEPS = 6  # pictures of a lid from shut to open
SCALES = {True: {"small": 0.72, "big": 1.32}, False: {"small": 0.84, "big": 1.13}}  # of what is portable or not


@dataclass(frozen=True)
class Look:
    noun: str
    colour: str
    material: str | None
    modifier: str | None
    size: str | None

    @cached_property
    def scale(self) -> float:
        return SCALES[NOUNS[self.noun].portable].get(self.size or "", 1.0)

    @cached_property
    def places(self) -> Places:
        return Places(**{name: it * self.scale for name, it in DRAWINGS["places"].get(self.noun, {}).items()})

    @cached_property
    def reach(self) -> tuple[float, float, float]:
        """Pixels to the left, to the right and above the anchor, if shut."""
        left, _, right, top = extent(parse(DRAWINGS["things"][self.noun]))
        return -left * self.scale, right * self.scale, top * self.scale

    @cached_property
    def style(self) -> Style:
        pattern = self.material or ("straw" if self.modifier == "straw" else None)
        return Style(self.colour, pattern, 0.62 if self.modifier == "glass" else 1.0)


@cache
def _badge(modifier: str, noun: str) -> tuple[Shape, ...]:
    left, _, right, top = extent(parse(DRAWINGS["things"][noun]))
    share = min(1.0, (right - left) / 11, top / 9)
    shapes = parse(DRAWINGS["badges"][modifier])
    return tuple(shape.mapped(lambda u, v: (u * share, v * share + top * 0.46), share) for shape in shapes)


def picture(look: Look, opened: float = 0.0, *, angle: float = 0.0, squeeze: float = 1.0) -> Sprite:
    """Return the picture of a thing; `opened` is 0 (shut, off) to 1 (open, lit)."""
    shapes = parse(DRAWINGS["things"][look.noun], round(opened * STEPS) / STEPS)
    if look.modifier in DRAWINGS["badges"]:
        shapes += _badge(look.modifier, look.noun)
    return draw(shapes, look.style, scale=look.scale, angle=angle, squeeze=squeeze)


# patterns of walls and floors: the first and last row, the points at a row and column from there, and their brightness
Tiling = tuple[int, int, Callable[[npt.NDArray[np.int_], npt.NDArray[np.int_]], Mask], float]
_CHECKS: Tiling = (WALL, SIDE, lambda row, column: (row // 10 + column // 10) % 2 == 1, 0.95)
_BOARDS: tuple[Tiling, ...] = (
    (WALL, SIDE, lambda row, column: row % 9 == 0, 0.93),
    (WALL, SIDE, lambda row, column: (column - 16 * (row // 9 % 2)) % 32 == 0, 0.93),
)
TILINGS: dict[str, tuple[Tiling, ...]] = {
    "bathroom": (
        (0, WALL, lambda row, column: row % 8 == 0, 0.955),
        (0, WALL, lambda row, column: column % 8 == 0, 0.955),
        _CHECKS,
    ),
    "kitchen": (_CHECKS,),
    "bedroom": _BOARDS,
    "hallway": (
        (0, 1, lambda row, column: row == 0, 0.97),
        (0, 38, lambda row, column: column % 10 == 0, 0.97),
        *_BOARDS,
    ),
    "garden": ((WALL, SIDE, lambda row, column: ((row * 7 + column * 13) % 31 < 2) & (column % 3 == 0), 0.88),),
    "office": ((WALL, SIDE, lambda row, column: (row + column) % 4 == 0, 0.965),),
}


@cache
def background(place: str) -> Image:
    wall, floor = DRAWINGS["walls"][place]
    image = np.empty((SIDE, SIDE, 3), np.float32)
    image[:WALL], image[WALL:] = wall, floor
    for first, last, pattern, brightness in TILINGS.get(place, ()):
        image[first:last][pattern(*np.mgrid[: last - first, :SIDE])] *= brightness
    blit(image, draw(parse(DRAWINGS["decor"][place]), Style("grey", opacity=0.5)), 0, 0)
    if place == "garden":
        image[WALL - 5 : WALL] = (138, 182, 116)
    else:
        image[WALL - 2 : WALL] *= 0.78
    return image


HEIGHTS = {"man": 41.0, "woman": 39.0, "boy": 31.0, "girl": 31.0, "robot": 38.0}  # pixels
DRAWN = 40.0  # height of an agent in the drawings
ARM, SHOULDER, HIP = 16.0, 25.0, 13.0  # length of an arm, heights
Hands = tuple[tuple[int, int], tuple[int, int]]
REST: Hands = ((-8, 12), (8, 12))
_CHILD_HEAD = 1.18  # relative size of a child's head


@dataclass(frozen=True)
class Body:
    kind: str
    colour: str
    skin: str
    hair: str

    @property
    def height(self) -> float:
        return HEIGHTS[self.kind]


@dataclass(frozen=True)
class Posture:
    view: str = "front"  # front, side or back
    stride: int = 0  # angle of the step in degrees; 0: stands
    sits: str | None = None  # on a seat or on the floor
    hands: Hands = REST  # in the drawing's pixels from the middle of the soles
    crouch: int = 0  # the height that it loses by crouching, in the drawing's pixels
    lean: int = 0  # how far the head is ahead of the feet, in pixels
    kick: int = 0  # angle of the kicking leg in degrees


def _head(body: Body, view: str) -> tuple[Shape, ...]:
    if body.kind == "robot":
        return parse(DRAWINGS["robot_head"][view])
    adult = {"boy": "man", "girl": "woman"}.get(body.kind, body.kind)
    hair = DRAWINGS["hair"][f"{adult} {view}"]
    shapes = parse(f"{DRAWINGS['head'][view]}; {hair}".format(skin=body.skin, hair=body.hair))
    if body.kind == adult:
        return shapes
    heads = [it.mapped(lambda u, v: (u * _CHILD_HEAD, 27.5 + (v - 27.5) * _CHILD_HEAD), _CHILD_HEAD) for it in shapes]
    return tuple(replace(it, numbers=tuple(round(number, 2) for number in it.numbers)) for it in heads)


def _legs(body: Body, posture: Posture) -> str:
    bare = body.skin if body.kind in ("woman", "girl") else "dark"
    paint = "grey" if body.kind == "robot" else bare
    if posture.sits:
        return str(DRAWINGS["legs"][posture.sits].format(paint=paint))
    legs = []
    for side, swing in ((-1, math.radians(posture.stride)), (1, math.radians(posture.kick - posture.stride))):
        u, v = side * 2.7 + 12 * math.sin(swing), 13.5 - 12.5 * math.cos(swing)
        legs += [f"l {side * 2.7} {HIP} {u:.1f} {v + 1:.1f} 3.4 {paint}", f"e {u + 0.8:.1f} {v + 1:.1f} 2.4 1.5 black"]
    return "; ".join(legs)


def _arm(side: int, hand: tuple[int, int], body: Body) -> str:
    shoulder = (side * 5.6, SHOULDER)
    du, dv = hand[0] - shoulder[0], hand[1] - shoulder[1]
    share = min(1.0, ARM / max(math.hypot(du, dv), 1e-6))
    u, v = shoulder[0] + du * share, shoulder[1] + dv * share
    sleeve, palm = ("grey", "black") if body.kind == "robot" else ("dark", body.skin)
    return f"l {shoulder[0]} {shoulder[1]} {u:.1f} {v:.1f} 2.6 {sleeve}; e {u:.1f} {v:.1f} 1.9 1.9 {palm}"


def pictures(body: Body, posture: Posture, facing: int) -> list[Sprite]:
    """Return the two pictures of an agent, the rear one first; `facing` is 1 to the right and -1 to the left."""

    def bend(u: float, v: float) -> tuple[float, float]:
        lean = posture.lean * (v - HIP) / (DRAWN - HIP) if v > HIP else 0
        return u + lean, v * (1 - posture.crouch / DRAWN)

    trunk = parse(_legs(body, posture)) + parse(DRAWINGS["torso"][body.kind]) + _head(body, posture.view)
    arms = parse("; ".join(_arm(side, hand, body) for side, hand in zip((-1, 1), posture.hands, strict=True)))
    sprites = []
    for shapes in (arms, trunk) if posture.view == "back" else (trunk, arms):
        bent = tuple(it.mapped(bend) for it in shapes) if posture.crouch or posture.lean else shapes
        sprite = draw(bent, Style(body.colour), scale=body.height / DRAWN)
        if facing < 0:
            left = -(sprite.left + sprite.alpha.shape[1])
            sprite = Sprite(sprite.colour[:, ::-1], sprite.alpha[:, ::-1], left, sprite.top)
        sprites.append(sprite)
    return sprites
