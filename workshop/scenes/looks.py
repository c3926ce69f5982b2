"""How a thing of a script looks: its shapes, its colour, its material, its modifier and its size as one picture."""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from workshop.scenes.shapes import BADGES, FURNITURE, LIDDED, OBJECTS, PLACES, Places
from workshop.scenes.sprites import PLAIN, Shape, Sprite, Style, Transform, between, draw, extent, parse
from workshop.scenes.world import NOUNS

STEPS = 6  # pictures of a lid between shut and open
SCALES = {"object": {"small": 0.72, "big": 1.32}, "furniture": {"small": 0.84, "big": 1.13}}
UNMARKED = Places()
_PATTERN_OF_MODIFIER = {"straw": "straw"}


@dataclass(frozen=True)
class Look:
    """What determines the picture of a thing."""

    noun: str
    colour: str
    material: str | None
    modifier: str | None
    size: str | None

    @classmethod
    def of(cls, item: dict[str, Any]) -> "Look":
        """The look of an item of a script."""
        return cls(item["noun"], item["colour"], item["material"], item["modifier"], item["size"])

    @cached_property
    def scale(self) -> float:
        """How much larger than usual it is."""
        kind = "furniture" if NOUNS[self.noun].bulk > 2 else "object"
        return SCALES[kind].get(self.size or "", 1.0)

    @cached_property
    def places(self) -> Places:
        """Where things go on, under, behind and in it, in pixels."""
        known, scale = PLACES.get(self.noun, UNMARKED), self.scale
        under = (known.under[0] * scale, known.under[1] * scale)
        rim = None if known.rim is None else known.rim * scale
        scaled = {name: getattr(known, name) * scale for name in ("on", "behind", "inside", "seat", "middle")}
        return replace(known, under=under, rim=rim, **scaled)

    @cached_property
    def extent(self) -> tuple[float, float]:
        """Width and height in pixels, shut."""
        return _size(self.noun, self.scale)

    @cached_property
    def reach(self) -> tuple[float, float]:
        """How far it goes to the left and to the right of its anchor, in pixels, shut."""
        left, _, right, _ = extent(_shapes(self.noun, 0))
        return -left * self.scale, right * self.scale

    @cached_property
    def style(self) -> Style:
        """Colour, pattern and what shows through."""
        pattern = self.material or _PATTERN_OF_MODIFIER.get(self.modifier or "")
        return Style(self.colour, pattern, 0.62 if self.modifier == "glass" else 1.0)


@cache
def _size(noun: str, scale: float) -> tuple[float, float]:
    left, _, right, top = extent(_shapes(noun, 0))
    return 2 * max(-left, right) * scale, top * scale


@cache
def _shapes(noun: str, step: int) -> tuple[Shape, ...]:
    if noun in LIDDED:
        return between(*LIDDED[noun], step / STEPS)
    return parse(OBJECTS[noun] if noun in OBJECTS else FURNITURE[noun])


@cache
def _badge(modifier: str, noun: str) -> tuple[Shape, ...]:
    """The mark of a modifier, moved to the middle of a thing and made to fit in it."""
    left, _, right, top = extent(_shapes(noun, 0))
    share = min(1.0, (right - left) / 11, top / 9)
    moved = []
    for shape in parse(BADGES[modifier]):
        lengths = [number * share for number in shape.numbers]
        places = range(1, 4, 2) if shape.kind in "bl" else range(1, len(lengths), 2) if shape.kind == "p" else (1,)
        for i in places:
            lengths[i] += top * 0.46
        moved.append(replace(shape, numbers=tuple(lengths)))
    return tuple(moved)


@cache
def _whole(look: Look, step: int) -> tuple[Shape, ...]:
    shapes = _shapes(look.noun, step)
    return shapes + _badge(look.modifier, look.noun) if look.modifier in BADGES else shapes


def picture(look: Look, opened: float = 0.0, transform: Transform = PLAIN) -> Sprite:
    """The picture of a thing; `opened` is 0 (shut, off) to 1 (open, lit)."""
    transform = replace(transform, scale=transform.scale * look.scale)
    return draw(_whole(look, round(opened * STEPS)), look.style, transform)
