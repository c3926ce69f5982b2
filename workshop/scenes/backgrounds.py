"""Pictures of the places: their walls and floors, each of its own kind, all in soft colours."""

from functools import cache

import numpy as np

from workshop.scenes.scene import SIDE, WALL
from workshop.scenes.sprites import Image, Placed, Style, blit, draw, parse

_WALLS = {  # and floors
    "bathroom": ((198, 220, 226), (176, 190, 196)),
    "bedroom": ((214, 204, 222), (198, 178, 158)),
    "garage": ((186, 184, 180), (160, 158, 156)),
    "garden": ((190, 222, 240), (168, 204, 138)),
    "hallway": ((226, 212, 186), (186, 158, 136)),
    "kitchen": ((232, 226, 202), (208, 200, 188)),
    "office": ((206, 214, 210), (164, 172, 182)),
}
_DECOR = {  # drawn from the top left corner, downwards below zero
    "bathroom": "e 80 -22 12 13 tan; e 80 -22 10 11 cold; l 75 -27 83 -15 1 white; l 0 -44 160 -44 1.4 cold",
    "bedroom": "b 62 -28 94 -8 skin; e 78 -20 7 5 tan; p 0 -44 160 -44 160 -42 0 -42 skin",
    "garage": (
        "b 58 -30 104 -8 wood; l 64 -12 64 -24 1.6 shadow; e 64 -12 3 2 shadow; l 76 -11 76 -25 1.6 shadow;"
        "p 84 -12 96 -12 96 -16 84 -16 shadow; r 90 -23 4 2.4 shadow"
    ),
    "garden": (
        "e 24 -14 14 5 white; e 34 -11 10 5 white; e 108 -20 13 4.5 white; e 118 -17 9 4 white; e 146 -10 7 7 glow"
    ),
    "hallway": (
        "l 46 -9 114 -9 2.4 tan; l 52 -9 52 -14 1.4 shadow; l 66 -9 66 -14 1.4 shadow; l 80 -9 80 -14 1.4 shadow;"
        "l 94 -9 94 -14 1.4 shadow; l 108 -9 108 -14 1.4 shadow; l 0 -38 160 -38 1.6 tan"
    ),
    "kitchen": (
        "e 80 -14 9 9 white; l 80 -14 80 -20 1 black; l 80 -14 84 -12 1 black; l 0 -40 160 -40 1 tan;"
        "l 0 -48 160 -48 1 tan"
    ),
    "office": (
        "b 60 -30 100 -8 white; l 65 -26 75 -18 1.2 shadow; l 75 -18 84 -22 1.2 shadow; l 84 -22 95 -12 1.2 shadow;"
        "l 63 -27 97 -27 1 shadow"
    ),
}


def _tint(image: Image, rows: slice, share: float, step: int, columns: int = 0, *, staggered: bool = False) -> None:
    """Darken thin lines: one row in every `step`, and one column in every `columns`."""
    part = image[rows]
    part[::step] *= share
    for i, top in enumerate(range(0, part.shape[0], step)):
        shift = columns // 2 if staggered and i % 2 else 0
        if columns:
            part[top : top + step, shift::columns] *= share


def _floor(image: Image, place: str) -> None:
    floor = slice(WALL, SIDE)
    rows, columns = np.mgrid[0 : SIDE - WALL, 0:SIDE]
    if place in ("bathroom", "kitchen"):
        image[floor][((rows // 10 + columns // 10) % 2).astype(bool)] *= 0.95
    elif place in ("bedroom", "hallway"):
        _tint(image, floor, 0.93, 9, 32, staggered=True)
    elif place == "garden":
        blades = ((rows * 7 + columns * 13) % 31 < 2) & (columns % 3 == 0)
        image[floor][blades] *= 0.88
    elif place == "office":
        image[floor][((rows + columns) % 4 == 0)] *= 0.965


@cache
def _picture(place: str) -> bytes:
    wall, floor = _WALLS[place]
    image = np.empty((SIDE, SIDE, 3), np.float32)
    image[:WALL], image[WALL:] = wall, floor
    if place == "bathroom":
        _tint(image, slice(0, WALL), 0.955, 8, 8)
    if place == "hallway":
        _tint(image, slice(0, 38), 0.97, 100, 10)
    _floor(image, place)
    blit(image, Placed(draw(parse(_DECOR[place]), Style("grey", opacity=0.5)), 0, 0))
    if place == "garden":
        image[WALL - 5 : WALL] = (138, 182, 116)
    else:
        image[WALL - 2 : WALL] *= 0.78
    return image.tobytes()


def background_of(place: str) -> Image:
    """The empty room, fresh to be painted on.

    Raises:
        KeyError: there is no such place

    """
    return np.frombuffer(_picture(place), np.float32).reshape(SIDE, SIDE, 3).copy()
