"""The drawings of all that is in the scenes, in the language of `sprites`; where things go on, under and in them."""

from dataclasses import dataclass

OBJECTS = {
    "apple": "e -2 5 4.2 5; e 2 5 4.2 5; l 0 9 1 13 1.5 brown; e 3.6 11.5 2.2 1.3 green",
    "ball": "e 0 6 6 6; p -1.5 0.3 1.5 0.3 2.2 6 1.5 11.7 -1.5 11.7 -2.2 6 mark; l -5.8 6 5.8 6 1 mark",
    "basket": (
        "l -7 9 -4 15.5 1.5; l -4 15.5 4 15.5 1.5; l 4 15.5 7 9 1.5; p -6 0 6 0 8.5 9 -8.5 9; e 0 9 8.3 2.2 inside;"
        "l -6.5 3 6.5 3 1 dark; l -7.5 6 7.5 6 1 dark"
    ),
    "bear": (
        "e -3.8 2 2.4 2.2; e 3.8 2 2.4 2.2; e 0 6 4.8 5; e -5 7.5 1.8 2.4; e 5 7.5 1.8 2.4; e -3.4 16 2 2;"
        "e 3.4 16 2 2; e 0 13 4.6 4.4; e 0 11.8 2 1.5 light; e -1.7 14 .7 .8 mark; e 1.7 14 .7 .8 mark;"
        "e 0 12.3 .8 .6 dark"
    ),
    "blanket": "p -10 0 10 0 9.5 7 -9.5 7; e 9.3 3.5 1.6 3.5 light; l -10 2.4 9 2.4 .8 dark; l -10 4.8 9 4.8 .8 dark",
    "block": "b -5 0 5 9; p -5 9 -2.5 12 7.5 12 5 9 light; p 5 0 7.5 3 7.5 12 5 9 dark",
    "bottle": "b -3.2 0 3.2 9; p -3.2 9 -1.3 13 1.3 13 3.2 9; b -1.5 13 1.5 16 dark; b -3.2 3 3.2 6.5 light",
    "bowl": "p -8 7 -6.5 3 -3.5 0 3.5 0 6.5 3 8 7; e 0 7 8 2.2 inside",
    "broom": "l 0 8 0 26 2 wood; p -5.5 0 5.5 0 3 9 -3 9; l -2 0 -1 8 .7 dark; l 2 0 1 8 .7 dark; b -3 8.2 3 9.6 dark",
    "bucket": (
        "l -7 11 -4.5 16 1; l -4.5 16 4.5 16 1; l 4.5 16 7 11 1; p -5 0 5 0 7.3 11 -7.3 11; e 0 11 7.2 2.1 inside"
    ),
    "can": "b -4 0.6 4 10; e 0 .8 4 1; e 0 10 4 1.5 light; e 0 10 1.6 .6 dark; b -4 3 4 5 mark",
    "car": (
        "p -8.5 2.5 8.5 2.5 8.5 6.5 6 7 4 11 -4 11 -6 7 -8.5 7; p -4.8 7 -3.3 10 -.5 10 -.5 7 sky;"
        "p .6 7 .6 10 3.3 10 4.8 7 sky; e -4.8 2.5 2.5 2.5 black; e 4.8 2.5 2.5 2.5 black; e -4.8 2.5 1 1 white;"
        "e 4.8 2.5 1 1 white"
    ),
    "chair": (
        "p -7 14 7 14 6.5 28 -6.5 28; b -4.5 17 4.5 19.5 dark; b -4.5 22 4.5 24.5 dark; b -9 0 -6.5 11; b 6.5 0 9 11;"
        "p -9 11 9 11 7 15 -7 15 light; b -9 9 9 11.5"
    ),
    "cup": "r 5 4.6 3 1.6; b -4.2 0 4.2 9; e 0 9 4.2 1.4 inside",
    "doll": (
        "l -1.6 0 -1.6 3 1.6 skin; l 1.6 0 1.6 3 1.6 skin; l -2 10 -6 6.5 1.7 skin; l 2 10 6 6.5 1.7 skin;"
        "p -6 2.5 6 2.5 2 11 -2 11; e 0 15 4.2 3.6 brown; e 0 13.8 3.2 3 skin; e -1.2 14 .5 .6 black;"
        "e 1.2 14 .5 .6 black"
    ),
    "duck": (
        "p -9 8 -4 4 -4 8; e -1 4.8 7 4.8; e 4.4 11 4 4; p 7.8 12.4 12 10.8 7.8 9.4 orange; e 5.4 12.2 .9 .9 mark;"
        "e -2 5.5 3.4 2.2 dark"
    ),
    "flag": "l -7 0 -7 20 1.6 wood; p -6.3 20 0 18.5 8 20 8 10.5 0 9 -6.3 10.5",
    "hat": "e 0 2 9.5 2.1; p -5.2 2.5 5.2 2.5 4.2 10 -4.2 10; b -5.2 3 5.2 4.8 mark",
    "hoop": "r 0 9 9 6.4; e 0 16.7 1.5 1.5 mark; e 0 1.3 1.5 1.5 mark",
    "phone": "b -3.6 0 3.6 12; b -2.5 2.6 2.5 10.5 sky; e 0 1.4 .8 .8 mark",
    "pillow": "p -9 .5 0 1.5 9 .5 8 5 9 9.5 0 8.5 -9 9.5 -8 5; l -6 3 -4 5 .7 dark; l 6 7 4 5 .7 dark",
    "plate": "e 0 5 8.5 5; e 0 5 5.6 3 light; r 0 5 3.2 2.6 mark",
    "shoe": (
        "p -7 1 8 1 8 3.5 2 5.5 -1.5 9.5 -7 9.5; b -7 0 8 1.6 mark; l -1 6 1.5 7.4 .9 mark; l .6 4.8 3 6.2 .9 mark"
    ),
    "stool": (
        "l -6 13 -8 0 2; l 6 13 8 0 2; l 0 12 0 1 1.8 dark; l -6.8 5 6.8 5 1.3; e 0 14 8.5 2.8 light; e 0 13.4 8.5 2"
    ),
    "towel": (
        "p -6.5 0 6.5 0 6.5 12 -6.5 12; b -6.5 1.5 6.5 2.9 mark; b -6.5 9 6.5 10.4 mark; l -6 0 -6 -.8 .8;"
        "l 6 0 6 -.8 .8"
    ),
    "truck": (
        "b -9.5 3 2.6 12.5; p 3.2 3 9.5 3 9.5 7.5 7.5 11 3.2 11; p 4.6 7.5 4.6 10 7 10 8.2 7.5 sky;"
        "e -6 2.6 2.6 2.6 black; e 5.8 2.6 2.6 2.6 black; e -6 2.6 1 1 white; e 5.8 2.6 1 1 white"
    ),
    "vase": "p -2.6 0 2.6 0 5.2 5 4.4 9 1.8 12 2.8 15.5 -2.8 15.5 -1.8 12 -4.4 9 -5.2 5; e 0 15.3 2.8 .9 inside",
    "wheel": "e 0 8 8 8 black; e 0 8 6.2 6.2; l 0 2 0 14 1.1 mark; l -6 8 6 8 1.1 mark; e 0 8 1.8 1.8 mark",
    "barrel": (
        "p -5.2 0 5.2 0 7 6.5 6.2 12.6 -6.2 12.6 -7 6.5; b -6.2 2.6 6.2 4 dark; b -6.2 9 6.2 10.4 dark;"
        "e 0 12.6 6.2 3 inside"
    ),
    "crate": (
        "b -7.5 0 7.5 10; p -7.5 10 -5.5 14 9.5 14 7.5 10 inside; b -7.5 3 7.5 3.9 dark; b -7.5 6.4 7.5 7.3 dark;"
        "b -7.5 0 -5.9 10 dark; b 5.9 0 7.5 10 dark"
    ),
    "drum": (
        "e 0 1.6 7.5 1.6; b -7.5 1.5 7.5 9; e 0 9 7.5 2.4 white; l -7 8 -3.5 2 1 mark; l -3.5 2 0 7 1 mark;"
        "l 0 7 3.5 2 1 mark; l 3.5 2 7 8 1 mark"
    ),
    "lemon": "e -6.3 4.4 1.6 1.3; e 6.3 4.4 1.6 1.3; e 0 4.4 6 4.4",
    "scarf": "p -11 2 -5 6 0 3.5 5 6.5 11 3 11 -.5 5 2.5 0 0 -5 2.5 -11 -1; l -11 1 -13 -.5 1; l 11 2 13 0 1",
}

FURNITURE = {
    "bed": (
        "b -20 0 -16.5 27 dark; b 16.5 0 20 14 dark; b -16.5 1 16.5 12 shadow; p -17 16 20 16 17 25 -15 25 light;"
        "b -17 11.5 20 16.5; e -10.5 21 4.6 2.6 white"
    ),
    "bench": (
        "b -15 17 15 29 dark; b -15 20 15 23; b -15 25 15 29; p -17 14 17 14 15 19 -15 19 light;"
        "b -14 0 14 12 shadow; b -17 11.5 17 14.5; b -17 0 -14 12; b 14 0 17 12"
    ),
    "desk": (
        "b -16 20 16 28 dark; p -18 18 18 18 16 25 -16 25 light; b -10 0 15.5 15 shadow; b -18 14.5 18 18;"
        "b -18 0 -9.5 15; b 15 0 18 15; l -16 5 -11.5 5 1 dark; l -16 10 -11.5 10 1 dark"
    ),
    "fence": (
        "b -19 1 19 17 dark; p -20 0 -15 0 -15 21 -17.5 25 -20 21; p -13 0 -8 0 -8 21 -10.5 25 -13 21;"
        "p -6 0 -1 0 -1 21 -3.5 25 -6 21; p 1 0 6 0 6 21 3.5 25 1 21; p 8 0 13 0 13 21 10.5 25 8 21;"
        "p 15 0 20 0 20 21 17.5 25 15 21; b -20 5 20 7.5; b -20 14 20 16.5"
    ),
    "rug": "e 0 5 22 6; e 0 5 16.5 3.9 light; e 0 5 15 3.2",
    "shelf": "b -15 1 15 38 shadow; b -15 0 -13 39; b 13 0 15 39; b -15 2 15 4.5; b -15 17 15 19.5; b -15 37 15 39.5",
    "sofa": (
        "p -18 8 18 8 17.5 25 -17.5 25; b -17 6 17 12 light; b -18 1 18 6.5 dark; b -22 1 -17 16; b 17 1 22 16;"
        "l 0 12 0 24 .8 dark; b -21 0 -18 1.5 black; b 18 0 21 1.5 black"
    ),
    "table": (
        "p -18 17 18 17 15 26 -15 26 light; b -14 0 14 14.5 shadow; b -18 13.8 18 17.4; b -17 0 -13.6 14;b 13.6 0 17 14"
    ),
    "tree": (
        "b -5 0 5 24 wood; l -2 2 -2 20 .9 brown; l 2 4 2 18 .9 brown; e -10 29 9 7.5; e 10 29 9 7.5; e 0 35 14 11;"
        "e -4 38 4 3 light; e 7 32 4 3 light"
    ),
    "bathtub": (
        "b -16 0 -13 2 black; b 13 0 16 2 black; p -20 18 -16 2 16 2 20 18; e 0 18 20.5 4.6; e 0 18 18 3.3 inside"
    ),
    "ladder": (
        "l -6 13 6 13 2.6; l -5 20 5 20 2.6; l -4.4 27 4.4 27 2.6; l -3.8 34 3.8 34 2.6; l -13 0 -3.5 40 2.8;"
        "l 13 0 3.5 40 2.8; b -5 38.6 5 42"
    ),
}

LIDDED = {  # what opens: shut and open have the same shapes
    "bag": (
        (
            "l -3 10 -2.5 16 1.4 dark; l -2.5 16 2.5 16 1.4 dark; l 2.5 16 3 10 1.4 dark; p -6 0 6 0 7 11.5 -7 11.5;"
            "e 0 11.5 6.6 .3 inside"
        ),
        (
            "l -6 10 -8.5 15 1.4 dark; l -8.5 15 -9.5 11 1.4 dark; l 9 14 7 10 1.4 dark; p -6 0 6 0 9 11.5 -9 11.5;"
            "e 0 11.5 8.6 2.6 inside"
        ),
    ),
    "book": (
        (
            "b -4.5 0 4.5 12; b 3 .8 4 11.2 white; b 3 .8 4 11.2 white; l -2.5 9 1.5 9 1.2 mark;"
            "l -2.5 6.6 1.5 6.6 1.2 mark; l -4 0 -4 12 1 dark"
        ),
        (
            "b -10 0 10 11; b -9 1.2 -.5 10.4 white; b .5 1.2 9 10.4 white; l -7.5 7 -2 7 1 grey; l 2 7 7.5 7 1 grey;"
            "l 0 0 0 11 1 dark"
        ),
    ),
    "box": (
        (
            "p -7 9 -5 12.5 9 12.5 7 9 inside; b -7 0 7 9; p 7 0 9 3.5 9 12.5 7 9 dark;"
            "p -7 9 -5 12.5 9 12.5 7 9 light; l -7 9 7 9 .9 dark"
        ),
        (
            "p -7 9 -5 12.5 9 12.5 7 9 inside; b -7 0 7 9; p 7 0 9 3.5 9 12.5 7 9 dark;"
            "p -7 21 -5 12.5 9 12.5 8 21 light; l -7 9 7 9 .9 dark"
        ),
    ),
    "jar": (
        "b -4.8 0 4.8 10; e 0 10 3.6 .8 inside; p -4.2 10 4.2 10 4.2 13.5 -4.2 13.5 dark; b -4.8 3 4.8 6 light",
        "b -4.8 0 4.8 10; e 0 10 4 1.3 inside; p 4.5 13 11 18 9 20.5 2.5 15.5 dark; b -4.8 3 4.8 6 light",
    ),
    "laptop": (
        "p -8.5 0 8.5 0 8.5 2.6 -8.5 2.6 dark; p -8.5 2.6 8.5 2.6 8.5 5.4 -8.5 5.4; p -1 4 1 4 1 4.4 -1 4.4 mark",
        (
            "p -8.5 0 8.5 0 8.5 2.6 -8.5 2.6 dark; p -8.5 2.6 8.5 2.6 8.5 14 -8.5 14;"
            "p -6.8 4.2 6.8 4.2 6.8 12.4 -6.8 12.4 sky"
        ),
    ),
    "suitcase": (
        (
            "p -8.5 10.5 -7 13 10 13 8.5 10.5 inside; l -3 12 -3 16 1.3 dark; l -3 16 3 16 1.3 dark;"
            "l 3 16 3 12 1.3 dark; b -8.5 0 8.5 10.5; b -6 0 -4.4 10.5 dark; b 4.4 0 6 10.5 dark;"
            "p -8.5 10.5 -7 13 10 13 8.5 10.5 light"
        ),
        (
            "p -8.5 10.5 -7 13 10 13 8.5 10.5 inside; l -3 20 -3 24 1.3 dark; l -3 24 3 24 1.3 dark;"
            "l 3 24 3 20 1.3 dark; b -8.5 0 8.5 10.5; b -6 0 -4.4 10.5 dark; b 4.4 0 6 10.5 dark;"
            "p -8 22 -7 13 10 13 9 22 light"
        ),
    ),
    "umbrella": (
        "l 0 1 0 21 1.5 wood; l 0 1 2.6 1.4 1.5 wood; p -1.8 6 -2.4 13 0 22 2.4 13 1.8 6; l 0 8 0 20 .7 dark",
        (
            "l 0 1 0 21 1.5 wood; l 0 1 2.6 1.4 1.5 wood; p -12.5 11 -7.5 18.5 0 22 7.5 18.5 12.5 11;"
            "l 0 11.5 0 21 .7 dark"
        ),
    ),
    "cabinet": (
        (
            "p -14 32 -11.5 36 11.5 36 14 32 light; b -14 0 14 32; b -12 2 12 30 inside; l -12 16 12 16 2;"
            "p -12 2 -.4 2 -.4 30 -12 30; p 12 2 .4 2 .4 30 12 30; l 0 2 0 30 1 dark; e -2.4 16 1.1 1.1 mark;"
            "e 2.4 16 1.1 1.1 mark"
        ),
        (
            "p -14 32 -11.5 36 11.5 36 14 32 light; b -14 0 14 32; b -12 2 12 30 inside; l -12 16 12 16 2;"
            "p -12 2 -16 -1 -16 28 -12 30; p 12 2 16 -1 16 28 12 30; l -12 2 -12 30 1 dark; e -15 14 1 1 mark;"
            "e 15 14 1 1 mark"
        ),
    ),
    "closet": (
        (
            "b -14 0 14 45; b -12 2 12 42.5 inside; l -12 37 12 37 1.2 grey; p -12 2 -.4 2 -.4 42.5 -12 42.5;"
            "p 12 2 .4 2 .4 42.5 12 42.5; l 0 2 0 42 1 dark; l -2.4 19 -2.4 24 1.3 mark; l 2.4 19 2.4 24 1.3 mark;"
            "b -14 42.5 14 45.5 dark"
        ),
        (
            "b -14 0 14 45; b -12 2 12 42.5 inside; l -12 37 12 37 1.2 grey; p -12 2 -16 -2 -16 39 -12 42.5;"
            "p 12 2 16 -2 16 39 12 42.5; l -12 2 -12 42 1 dark; l -15 17 -15 22 1.2 mark;"
            "l 15 17 15 22 1.2 mark; b -14 42.5 14 45.5 dark"
        ),
    ),
    "door": (
        (
            "b -12.5 0 12.5 46 dark; b -10 0 10 43.5 inside; p -10 0 10 0 10 43.5 -10 43.5;"
            "p -6.5 24 6.5 24 6.5 39 -6.5 39 light; p -6.5 5 6.5 5 6.5 18 -6.5 18 light; e 7.6 21 1.4 1.4 mark"
        ),
        (
            "b -12.5 0 12.5 46 dark; b -10 0 10 43.5 inside; p -10 0 -4 -4 -4 38 -10 43.5;"
            "p -9 24 -5.5 22 -5.5 34 -9 37.5 light; p -9 4 -5.5 1.5 -5.5 15 -9 17.5 light; e -5.4 18 1.1 1.3 mark"
        ),
    ),
    "fridge": (
        (
            "b -11.5 0 11.5 43; b -9.5 2.5 9.5 41 cold; l -9.5 18 9.5 18 1.2 grey; l -9.5 31 9.5 31 1.2 grey;"
            "p -11 2 11 2 11 42.5 -11 42.5; p -11 27 11 27 11 28 -11 28 dark; l 8.5 16 8.5 24 1.5 mark;"
            "l 8.5 31 8.5 37 1.5 mark"
        ),
        (
            "b -11.5 0 11.5 43; b -9.5 2.5 9.5 41 cold; l -9.5 18 9.5 18 1.2 grey; l -9.5 31 9.5 31 1.2 grey;"
            "p -11 2 -15 -2 -15 38 -11 42.5; p -11 27 -15 22.5 -15 23.5 -11 28 dark; l -14 11 -14 19 1.3 mark;"
            "l -14 27 -14 33 1.3 mark"
        ),
    ),
    "window": (
        (
            "b -14 -1 14 29; b -12 1.5 12 26.5 outdoors; e -5 20 4 2 white; e 6 9 4 4 green;"
            "p -12 1.5 -.5 1.5 -.5 26.5 -12 26.5 sky; p 12 1.5 .5 1.5 .5 26.5 12 26.5 sky; l 0 1.5 0 26.5 1.6;"
            "l -12 14 -.5 14 1.4; l 12 14 .5 14 1.4; b -16 -3 16 -.5"
        ),
        (
            "b -14 -1 14 29; b -12 1.5 12 26.5 outdoors; e -5 20 4 2 white; e 6 9 4 4 green;"
            "p -12 1.5 -19 -2 -19 23 -12 26.5 sky; p 12 1.5 19 -2 19 23 12 26.5 sky; l -12 1.5 -12 26.5 1.6;"
            "l -19 10.5 -12 14 1.4; l 19 10.5 12 14 1.4; b -16 -3 16 -.5"
        ),
    ),
    "lamp": (
        (
            "e 0 30 3 .1 glow; e 0 1.6 6.5 1.8 dark; l 0 2 0 32 2 dark; e 0 31 2.4 2.2 inside;"
            "p -8.5 31 8.5 31 5 43 -5 43"
        ),
        (
            "e 0 30 21 21 glow; e 0 1.6 6.5 1.8 dark; l 0 2 0 32 2 dark; e 0 30 3.4 3.2 yellow;"
            "p -8.5 31 8.5 31 5 43 -5 43"
        ),
    ),
}


@dataclass(frozen=True)
class Places:
    """Where the base of another thing goes, in pixels above this one's base.

    Attributes:
        on: of what stands on it
        under: room for what is under it: its width and height
        behind: the edge that hides the lower part of what is behind it
        inside: of what is in it
        rim: the edge that hides the lower part of what is in it; None where nothing is hidden
        seat: how high one sits on it
        middle: how far to the right of its middle all of this is

    """

    on: float = 0
    under: tuple[float, float] = (0, 0)
    behind: float = 0
    inside: float = 0
    rim: float | None = None
    seat: float = 0
    middle: float = 0


PLACES = {
    "bed": Places(on=19, under=(32, 11), behind=25, seat=18, middle=1.5),
    "bench": Places(on=16, under=(27, 11.5), behind=29, seat=15),
    "cabinet": Places(on=33.5, inside=3),
    "closet": Places(inside=3),
    "desk": Places(on=20, under=(24, 14), behind=28, middle=0),
    "fence": Places(behind=23),
    "fridge": Places(inside=3.5),
    "rug": Places(on=3, seat=4),
    "shelf": Places(on=19.5),
    "sofa": Places(on=9, behind=25, seat=10),
    "table": Places(on=20, under=(27, 13.5), behind=26),
    "tree": Places(under=(40, 22), behind=5),
    "bathtub": Places(inside=11, rim=15.5, behind=22),
    "ladder": Places(under=(16, 11.5), behind=12),
    "chair": Places(on=12.5, seat=12),
    "stool": Places(on=14, seat=14),
    "bag": Places(inside=5, rim=10.5),
    "basket": Places(inside=4, rim=8),
    "bowl": Places(inside=3, rim=6),
    "box": Places(inside=4.5, rim=9.2),
    "bucket": Places(inside=5, rim=10),
    "suitcase": Places(inside=6, rim=10.7),
    "barrel": Places(inside=6, rim=11.2),
    "crate": Places(inside=5, rim=10.2),
}

BADGES = {  # what a modifier adds, drawn around the middle of the thing
    "gift": "b -1.2 -6 1.2 6 mark; b -7 -1 7 1 mark; e -2 6 2.2 1.4 mark; e 2 6 2.2 1.4 mark",
    "toy": "p 0 4 1 1.2 3.8 1.2 1.6 -.6 2.4 -3.4 0 -1.8 -2.4 -3.4 -1.6 -.6 -3.8 1.2 -1 1.2 mark",
    "teddy": "p -4 1.6 -4 -1.6 0 0 4 -1.6 4 1.6 0 0 mark",
    "beach": (
        "e 0 0 2.2 2.2 mark; l -4 0 4 0 .9 mark; l 0 -4 0 4 .9 mark; l -2.8 -2.8 2.8 2.8 .9 mark;"
        "l -2.8 2.8 2.8 -2.8 .9 mark"
    ),
    "paper": "p 5 5 1.6 5 5 1.6 white; l -4 3 0 -1 .7 dark; l 0 -1 3 2 .7 dark; l -3 -4 1 -2 .7 dark",
    "school": "l -2.4 -3 0 3.4 1.2 mark; l 2.4 -3 0 3.4 1.2 mark; l -1.4 -.8 1.4 -.8 1 mark",
    "water": "p 0 4 2.6 -.6 0 -1 -2.6 -.6 sky; e 0 -1 2.6 2.4 sky",
    "baby": "e -1.4 1 1.7 1.6 mark; e 1.4 1 1.7 1.6 mark; p -2.9 .4 2.9 .4 0 -3.4 mark",
    "cookie": "e 0 0 3.2 3.2 wood; e -1 .8 .6 .6 black; e 1 -1 .6 .6 black; e .8 1.4 .5 .5 black",
    "coffee": "e 0 0 2.4 3.4 inside; l -.8 -2.6 .8 2.6 .9 wood",
    "rubber": "e -1.8 2.2 2 1.3 white; e 1.8 -1.6 .9 .6 white",
    "glass": "l -3.4 -1 -.4 4 1.3 white; l -1.4 -2.4 .8 1.4 .9 white",
}
