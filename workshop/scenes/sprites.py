"""Small pictures from lines of text: shapes with a fill, a pattern and an outline, turned and squeezed at will.

A drawing is a string of shapes, each painted over the one before, separated by `;`:

    e u v ru rv [paint]          ellipse
    r u v outer inner [paint]    ring
    b u0 v0 u1 v1 [paint]        box
    p u v u v u v ... [paint]    polygon
    l u0 v0 u1 v1 width [paint]  line

Lengths are pixels; u runs to the right from the middle of the drawing, v upwards from its base. Paints are in `PAINTS`;
`main` (if none is named), `dark`, `light` and `mark` (what contrasts) follow the colour of the thing drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

Grid = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Image = npt.NDArray[np.float32]  # rows, columns, red to blue: 0 to 255
Colour = tuple[float, float, float]
Pattern = Callable[[Grid, Grid], Grid]  # how much of the mark shows at a point: 0 to 1

FINE = 3  # samples of a pixel in each direction
COLOURS: dict[str, Colour] = {
    "red": (214, 36, 36),
    "blue": (36, 84, 224),
    "green": (38, 160, 56),
    "yellow": (250, 216, 30),
    "white": (250, 250, 250),
    "black": (26, 26, 30),
    "brown": (126, 74, 34),
    "orange": (250, 136, 20),
    "pink": (252, 130, 186),
    "grey": (138, 140, 144),
    "purple": (134, 44, 178),
}
PAINTS: dict[str, Colour] = {
    **COLOURS,
    "inside": (62, 50, 48),
    "shadow": (74, 66, 64),
    "sky": (196, 226, 244),
    "outdoors": (104, 176, 232),
    "wood": (150, 108, 66),
    "skin": (240, 200, 166),
    "tan": (176, 122, 86),
    "glow": (255, 242, 150),
    "cold": (206, 226, 238),
}
PALE = ("white", "yellow", "pink", "orange", "grey")  # colours that a dark mark shows up on


@dataclass(frozen=True, eq=False)
class Sprite:
    """A picture with its place: `left` and `top` are pixels from the anchor, the middle of the base."""

    colour: Image  # already multiplied by alpha
    alpha: Image  # rows, columns, 1: 0 to 1
    left: int
    top: int


@dataclass(frozen=True)
class Style:
    """How a drawing is painted: its colour, a pattern over `main`, how much shows through, a drawing on top."""

    colour: str
    pattern: str | None = None
    opacity: float = 1.0
    badge: str = ""


def contrasting(colour: str) -> Colour:
    """What shows up on a colour: near-black on pale ones, white on the others."""
    return (40, 40, 52) if colour in PALE else (250, 250, 250)


def _mix(first: Colour, second: Colour, share: float) -> Colour:
    mixed = [a * (1 - share) + b * share for a, b in zip(first, second, strict=True)]
    return (mixed[0], mixed[1], mixed[2])


def paint(name: str, colour: str) -> Colour:
    """The colour that a paint is on a thing of some colour.

    Raises:
        KeyError: there is no such paint

    """
    base = COLOURS[colour]
    if name == "main":
        return base
    if name == "dark":
        return _mix(base, (0, 0, 0), 0.32) if colour != "black" else (58, 58, 64)
    if name == "light":
        return _mix(base, (255, 255, 255), 0.28) if colour != "white" else (226, 228, 232)
    return contrasting(colour) if name == "mark" else PAINTS[name]


def _grain(u: Grid, v: Grid) -> Grid:
    return np.where((v + 0.7 * np.sin(u * 0.6)) % 3.2 < 1.1, np.float32(0.55), np.float32(0))


def _sheen(u: Grid, v: Grid) -> Grid:
    return np.where((u + v) % 9 < 2.6, np.float32(0.7), np.float32(0))


def _stripes(u: Grid, v: Grid) -> Grid:
    del v
    return ((u + 100.9) % 5 < 1.9).astype(np.float32)


def _dots(u: Grid, v: Grid) -> Grid:
    row = np.floor(v / 4)
    near = ((u + 2 * (row % 2) + 100) % 4 - 2) ** 2 + (v % 4 - 2) ** 2
    return np.where(near < 1.3, np.float32(1), np.float32(0))


def _weave(u: Grid, v: Grid) -> Grid:
    return np.where(((u + v) % 4 < 1) | ((u - v) % 4 < 1), np.float32(0.55), np.float32(0))


PATTERNS: dict[str, tuple[Pattern, Colour | None]] = {  # and the colour of the mark, if it is not what contrasts
    "wooden": (_grain, (58, 30, 10)),
    "metal": (_sheen, (255, 255, 255)),
    "striped": (_stripes, None),
    "dotted": (_dots, None),
    "straw": (_weave, (96, 70, 20)),
}
_ON_PALE: dict[str, Colour] = {"metal": (92, 98, 110)}  # white sheen is not seen on white


@dataclass(frozen=True)
class Shape:
    """One shape of a drawing."""

    kind: str
    numbers: tuple[float, ...]
    paint: str

    def points(self) -> list[tuple[float, float]]:
        """Corners of what it spans."""
        n = self.numbers
        if self.kind in "er":
            ru, rv = (n[2], n[3]) if self.kind == "e" else (n[2], n[2])
            return [(n[0] - ru, n[1] - rv), (n[0] + ru, n[1] + rv), (n[0] - ru, n[1] + rv), (n[0] + ru, n[1] - rv)]
        if self.kind == "b":
            return [(n[0], n[1]), (n[2], n[3]), (n[0], n[3]), (n[2], n[1])]
        if self.kind == "l":
            half = n[4] / 2
            return [(n[i] + du, n[i + 1] + dv) for i in (0, 2) for du in (-half, half) for dv in (-half, half)]
        return list(zip(n[::2], n[1::2], strict=True))

    def covers(self, u: Grid, v: Grid) -> Mask:
        """The points that lie in it."""
        n = self.numbers
        if self.kind == "e":
            return np.asarray(((u - n[0]) / max(n[2], 0.01)) ** 2 + ((v - n[1]) / max(n[3], 0.01)) ** 2 <= 1)
        if self.kind == "r":
            square = (u - n[0]) ** 2 + (v - n[1]) ** 2
            return (square <= n[2] ** 2) & (square >= n[3] ** 2)
        if self.kind == "b":
            return (u >= n[0]) & (u <= n[2]) & (v >= n[1]) & (v <= n[3])
        return _near_line(n, u, v) if self.kind == "l" else _in_polygon(self.points(), u, v)


def _near_line(n: tuple[float, ...], u: Grid, v: Grid) -> Mask:
    du, dv = n[2] - n[0], n[3] - n[1]
    along = np.clip(((u - n[0]) * du + (v - n[1]) * dv) / max(du * du + dv * dv, 1e-6), 0, 1)
    return np.asarray((u - n[0] - along * du) ** 2 + (v - n[1] - along * dv) ** 2 <= (n[4] / 2) ** 2)


def _in_polygon(points: list[tuple[float, float]], u: Grid, v: Grid) -> Mask:
    inside = np.zeros(u.shape, bool)
    for (u0, v0), (u1, v1) in zip(points, points[1:] + points[:1], strict=True):
        if v0 != v1:
            inside ^= ((v0 > v) != (v1 > v)) & (u < (u1 - u0) * (v - v0) / (v1 - v0) + u0)
    return inside


@cache
def parse(drawing: str) -> tuple[Shape, ...]:
    """The shapes of a drawing."""
    shapes = []
    for words in (part.split() for part in drawing.split(";") if part.strip()):
        named = words[-1] if words[-1][-1].isalpha() else "main"
        numbers = [float(word) for word in words[1:] if not word[-1].isalpha()]
        shapes.append(Shape(words[0], tuple(numbers), named))
    return tuple(shapes)


def between(first: str, second: str, share: float) -> tuple[Shape, ...]:
    """A drawing on its way to another one with the same shapes: 0 is the first, 1 the second.

    Raises:
        ValueError: the two do not have the same shapes

    """
    pairs = zip(parse(first), parse(second), strict=True)
    return tuple(
        Shape(a.kind, tuple(x + (y - x) * share for x, y in zip(a.numbers, b.numbers, strict=True)), b.paint)
        for a, b in pairs
    )


def extent(shapes: tuple[Shape, ...]) -> tuple[float, float, float, float]:
    """Left, bottom, right and top, in the drawing's own pixels; light does not count."""
    points = [point for shape in shapes if shape.paint != "glow" for point in shape.points()]
    u, v = [u for u, _ in points], [v for _, v in points]
    return min(u), min(v), max(u), max(v)


@dataclass(frozen=True)
class Transform:
    """How a drawing is put on the picture: scaled, turned by degrees around its middle, squeezed from the sides."""

    scale: float = 1.0
    angle: float = 0.0
    squeeze: float = 1.0
    mirror: bool = False


PLAIN = Transform()


def _window(shapes: tuple[Shape, ...], transform: Transform) -> tuple[tuple[int, int, int, int], float]:
    """Pixels that the drawing needs (left, top, right, bottom, from the anchor, downwards) and its middle's height."""
    left, bottom, right, top = extent(shapes)
    middle = (bottom + top) / 2 * transform.scale
    glow = [point for shape in shapes if shape.paint == "glow" for point in shape.points()]
    reach_u = max(abs(u) for u in (left, right, *(u for u, _ in glow))) * transform.scale
    low, high = (
        min([bottom, *(v for _, v in glow)]) * transform.scale,
        max([top, *(v for _, v in glow)]) * transform.scale,
    )
    if transform.angle:
        reach_u = reach = float(np.hypot(reach_u, max(high - middle, middle - low)))
        low, high = middle - reach, middle + reach
    across, down, up = int(reach_u) + 2, int(-low) + 2, int(high) + 2
    return (-across, -up, across, max(down, 2)), middle


@lru_cache(maxsize=20_000)
def draw(shapes: tuple[Shape, ...], style: Style, transform: Transform = PLAIN) -> Sprite:
    """The picture of a drawing."""
    (left, top, right, bottom), middle = _window(shapes, transform)
    across = (np.arange((right - left) * FINE, dtype=np.float32) + 0.5) / FINE + left
    upwards = -((np.arange((bottom - top) * FINE, dtype=np.float32) + 0.5) / FINE + top)
    u, v = np.meshgrid(across, upwards)
    if transform.angle:
        cos, sin = np.cos(np.radians(transform.angle)), np.sin(np.radians(transform.angle))
        u, v = u * cos + (v - middle) * sin, (v - middle) * cos - u * sin + middle
    u = u / (transform.scale * max(transform.squeeze, 0.1)) * (-1 if transform.mirror else 1)
    colour, alpha = _paint(
        shapes, style, u.astype(np.float32), (v / transform.scale).astype(np.float32), turned=bool(transform.angle)
    )
    fine = np.concatenate([colour * alpha, alpha], axis=2)
    rows, columns = fine.shape[0] // FINE, fine.shape[1] // FINE
    small = fine.reshape(rows, FINE, columns, FINE, 4).mean((1, 3))
    return Sprite(small[..., :3], small[..., 3:], left, top)


def _part(shape: Shape, u: Grid, v: Grid, *, turned: bool) -> tuple[slice, slice]:
    """The rows and columns of the grid that a shape can touch."""
    if turned:
        return slice(None), slice(None)
    points = shape.points()
    left, right = min(u for u, _ in points), max(u for u, _ in points)
    low, high = min(v for _, v in points), max(v for _, v in points)
    columns = np.flatnonzero((u[0] >= left) & (u[0] <= right))
    rows = np.flatnonzero((v[:, 0] >= low) & (v[:, 0] <= high))
    if not len(columns) or not len(rows):
        return slice(0, 0), slice(0, 0)
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def _paint(shapes: tuple[Shape, ...], style: Style, u: Grid, v: Grid, *, turned: bool) -> tuple[Image, Image]:
    colour = np.zeros((*u.shape, 3), np.float32)
    alpha = np.zeros((*u.shape, 1), np.float32)
    solid = np.zeros(u.shape, bool)
    for shape in shapes:
        part = _part(shape, u, v, turned=turned)
        mask = shape.covers(u[part], v[part])
        if shape.paint == "glow":
            mask &= ~solid[part]
            colour[part][mask], alpha[part][mask] = PAINTS["glow"], 0.5
            continue
        colour[part][mask] = paint(shape.paint, style.colour)
        if style.pattern and shape.paint in ("main", "light"):
            _cover(colour[part], mask, style, u[part], v[part])
        alpha[part][mask] = style.opacity if shape.paint in ("main", "light") else 1.0
        solid[part] |= mask
    _outline(colour, alpha, solid, style)
    return colour, alpha


def _cover(colour: Image, mask: Mask, style: Style, u: Grid, v: Grid) -> None:
    """Lay the pattern over a shape."""
    pattern, mark = PATTERNS[style.pattern or ""]
    if style.colour in ("white", "grey"):
        mark = _ON_PALE.get(style.pattern or "", mark)
    if style.colour == "black" and style.pattern in ("wooden", "straw"):
        mark = (150, 112, 78)
    share = pattern(u, v)[mask][:, None]
    colour[mask] = colour[mask] * (1 - share) + np.array(mark or contrasting(style.colour), np.float32) * share


def _outline(colour: Image, alpha: Image, solid: Mask, style: Style) -> None:
    """A thin dark line around everything, within its own shape."""
    inner = solid.copy()
    for axis in (0, 1):
        inner &= np.roll(solid, 2, axis) & np.roll(solid, -2, axis)
    edge = solid & ~inner
    colour[edge] = _mix(COLOURS[style.colour], (20, 16, 24), 0.72)
    alpha[edge] = 1.0


@dataclass(frozen=True)
class Placed:
    """A sprite with its anchor at (x, y), in pixels; only rows from `top` up to `bottom` show."""

    sprite: Sprite
    x: int
    y: int
    top: int = 0
    bottom: int = 1_000_000

    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the pixels that it takes up."""
        left, top = self.x + self.sprite.left, self.y + self.sprite.top
        rows, columns = self.sprite.alpha.shape[:2]
        return left, max(top, self.top), left + columns, min(top + rows, self.bottom)


def blit(image: Image, placed: Placed, within: tuple[int, int, int, int] | None = None) -> None:
    """Paint a sprite on an image, or on that part of it (left, top, right, bottom)."""
    area = within or (0, 0, image.shape[1], image.shape[0])
    x0, y0, x1, y1 = placed.box()
    left, top, right, bottom = max(x0, area[0]), max(y0, area[1]), min(x1, area[2]), min(y1, area[3])
    if left >= right or top >= bottom:
        return
    sprite, up = placed.sprite, placed.y + placed.sprite.top
    inner = (slice(top - up, bottom - up), slice(left - x0, right - x0))
    part = image[top:bottom, left:right]
    part *= 1 - sprite.alpha[inner]
    part += sprite.colour[inner]
