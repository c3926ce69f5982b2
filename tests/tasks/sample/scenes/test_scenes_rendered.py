"""The rendered videos: what a script says is in the pixels of the mp4 file, and what it does not say is not.

Everything is measured in frames decoded from real files. To measure where a thing is, a script is recoloured: the thing
red, what it is related to blue, all else without colour.
"""

import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from penumbra.tasks.sample.scenes import encoding, playback, render
from penumbra.tasks.sample.scenes.actions import ACTIONS, MANNERS
from penumbra.tasks.sample.scenes.agent_animations import animate
from penumbra.tasks.sample.scenes.backgrounds import background_of
from penumbra.tasks.sample.scenes.generate import DATA
from penumbra.tasks.sample.scenes.initial_scene import initial_scene
from penumbra.tasks.sample.scenes.looks import picture
from penumbra.tasks.sample.scenes.script import SPEED, write_script
from penumbra.tasks.sample.scenes.shapes import LIDDED
from penumbra.tasks.sample.scenes.sprites import COLOURS, between
from penumbra.tasks.sample.scenes.world import FLOOR, NOUNS, PLACES, fits

pytestmark = [pytest.mark.slow, pytest.mark.long]

Json = dict[str, Any]
Frames = npt.NDArray[np.int16]  # time, rows, columns, red to blue
Mask = npt.NDArray[np.bool_]
SCRIPTS = render.read_scripts()
SAMPLE = random.Random(3).sample(SCRIPTS, 12)


def decode(path: Path) -> Frames:
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(np.int16)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Json], Frames]:
    """Makes an mp4 file of a script and decodes it."""
    folder = tmp_path_factory.mktemp("videos")

    def make(script: Json) -> Frames:
        path = folder / "video.mp4"
        encoding.encode_script(script, path)
        return decode(path)

    return make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, rendered by two processes."""
    folder = tmp_path_factory.mktemp("scenes")
    rendering = render.render(SAMPLE, folder, processes=2)
    assert not rendering.failed
    assert all(video.new for video in rendering.videos)
    return folder


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_as_long_as_the_annotation_says(folder: Path) -> None:
    durations = {
        vid: video["duration"] for path in DATA.glob("*.json") for vid, video in json.loads(path.read_text()).items()
    }
    assert set(durations) == {script["vid"] for script in SCRIPTS}
    for script in SAMPLE:
        with av.open(str(folder / f"{script['vid']}.mp4")) as container:
            stream = container.streams.video[0]
            times = [frame.time for frame in container.decode(stream)]
            assert container.duration is not None
            assert container.duration / av.time_base == pytest.approx(durations[script["vid"]], abs=0.101)
            assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 160, 160)
        assert len(times) == round(10 * durations[script["vid"]])
        assert times == pytest.approx([index / 10 for index in range(len(times))])


def test_the_same_script_gives_the_same_bytes_in_any_process(folder: Path, tmp_path: Path) -> None:
    render.render(SAMPLE[:4], tmp_path, processes=1)
    for script in SAMPLE[:4]:
        name = f"{script['vid']}.mp4"
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_what_is_whole_is_left_alone_and_what_is_not_is_made_again(folder: Path, tmp_path: Path) -> None:
    scripts = SAMPLE[:5]
    render.render(scripts, tmp_path, processes=1)
    whole, cut, empty, other, gone = (tmp_path / f"{script['vid']}.mp4" for script in scripts)
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    empty.write_bytes(b"")
    other.write_bytes(whole.read_bytes())
    gone.unlink()
    before = whole.stat()
    rendering = render.render(scripts, tmp_path, processes=1)
    assert [video.new for video in rendering.videos] == [False, True, True, True, True]
    assert (whole.stat().st_mtime_ns, whole.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert cut.read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} == {f"{script['vid']}.mp4" for script in scripts}


def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penumbra.tasks.sample.scenes.render",
        str(tmp_path),
        "--limit",
        "40",
        "--processes",
        "1",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while len(list(tmp_path.glob("S*.mp4"))) < 3:
            assert process.poll() is None
        process.kill()
    made = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("S*.mp4")}
    render.render(SCRIPTS[: len(made) + 2], tmp_path, processes=1)
    for name, time in made.items():
        assert (tmp_path / name).stat().st_mtime_ns == time
        assert decode(tmp_path / name).any()


def test_a_bad_script_stops_no_other(tmp_path: Path) -> None:
    bad = copy.deepcopy(SAMPLE[0])
    bad["setting"]["items"][0]["noun"] = "unicorn"
    rendering = render.render([bad, SAMPLE[1]], tmp_path, processes=1)
    assert [video.problem is None for video in rendering.videos] == [False, True]
    assert "unicorn" in str(rendering.failed[0].problem)
    assert [path.name for path in tmp_path.iterdir()] == [f"{SAMPLE[1]['vid']}.mp4"]


def test_the_command_renders_the_split_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    render.main([str(tmp_path / "new"), "--split", "novel_word", "--limit", "2", "--processes", "1"])
    expected = [script["vid"] for script in SCRIPTS if script["split"] == "novel_word"][:2]
    assert sorted(path.stem for path in (tmp_path / "new").iterdir()) == expected
    output = capsys.readouterr()
    assert "2 videos rendered" in output.out
    assert "2/2 videos" in output.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--limit", "0"], "'0'"),
        (["--processes", "two"], "'two'"),
        (["--split", "nosuch"], "'nosuch'"),
        (["--scripts", "/nosuch/file"], "/nosuch/file"),
        (["--scripts", __file__], "line 1"),
    ],
)
def test_a_bad_argument_gives_one_line(
    arguments: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        render.main([str(tmp_path), *arguments])
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert error.count("\n") == 1
    assert named in error


def test_a_video_id_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "scripts.jsonl").write_text(json.dumps({**SAMPLE[0], "vid": "../../evil"}))
    with pytest.raises(ValueError, match="evil"):
        render.read_scripts(tmp_path / "scripts.jsonl")


# --- time ------------------------------------------------------------------------------------------------------------


def changes(frames: Frames) -> npt.NDArray[np.bool_]:
    """For each frame whether it differs visibly from the one before."""
    return np.concatenate([[False], (np.abs(np.diff(frames, axis=0)).max(3) > 60).sum((1, 2)) >= 3])


def test_all_that_moves_moves_within_the_windows(folder: Path) -> None:
    for script in SAMPLE:
        moves = changes(decode(folder / f"{script['vid']}.mp4"))
        for event in script["events"]:
            window = slice(round(event["start"] * 10) + 1, round(event["end"] * 10) + 1)
            assert moves[window].any(), (script["vid"], event)
            moves = moves.copy()
        for event in script["events"]:
            moves[round(event["start"] * 10) + 1 : round(event["end"] * 10) + 1] = False
        assert not moves.any(), script["vid"]


def test_every_kind_of_event_is_seen_in_its_window(rendered: Callable[[Json], Frames]) -> None:
    for action in ACTIONS:
        events = [(event["end"], script["vid"], script, event) for script in SCRIPTS for event in script["events"]]
        _, _, script, event = min((row for row in events if row[3]["action"] == action), key=lambda row: row[:2])
        frames = rendered({**script, "duration": event["end"] + 0.2})
        window = changes(frames)[round(event["start"] * 10) + 1 : round(event["end"] * 10) + 1]
        assert window.mean() > 0.2, (script["vid"], event)


def test_painting_only_what_changed_gives_the_same_picture() -> None:
    for script in SAMPLE[:3]:
        scene, background = initial_scene(script), background_of(script["setting"]["place"])
        painter = playback.Painter(background)
        for event in script["events"]:
            animation = animate(scene, event)
            for time in np.linspace(event["start"], event["end"], 9):
                animation.show(float(time))
                assert (painter.paint(scene) == playback.Painter(background).paint(scene)).all()


# --- where things are ------------------------------------------------------------------------------------------------


def red(frame: npt.NDArray[np.int16]) -> Mask:
    return np.asarray((frame[..., 0] > 130) & (frame[..., 0] > 2 * frame[..., 1:].max(-1)))


def blue(frame: npt.NDArray[np.int16]) -> Mask:
    return (frame[..., 2] > 120) & (frame[..., 0] < 125) & (frame[..., 1] < 150) & (frame[..., 2] > frame[..., 0] + 60)


def dark(frame: npt.NDArray[np.int16]) -> Mask:
    return np.asarray(frame.max(-1) < 100)


def box(mask: Mask) -> tuple[int, int, int, int]:
    """Left, top, right and bottom."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]), int(rows[-1])


def relation(frame: npt.NDArray[np.int16], whole: int) -> str:
    """How the red thing, which has `whole` pixels if it is wholly seen, is related to the blue one; by looks alone."""
    thing, other = red(frame), blue(frame)
    if thing.sum() < 6:
        return "hidden"
    left, top, right, bottom = box(thing)
    o_left, _, o_right, o_bottom = box(other)
    if not o_left <= (left + right) / 2 <= o_right:
        gap = max(o_left - right, left - o_right) - 1
        return "beside" if gap <= 4 else "near" if gap <= 14 else "elsewhere"
    if top > o_bottom:
        return "near" if top - o_bottom <= 14 else "elsewhere"
    sides = [
        dark(frame)[bottom - 2 : bottom + 1, left - 4 : left],
        dark(frame)[bottom - 2 : bottom + 1, right + 1 :][:, :4],
    ]
    enclosed = np.concatenate(sides, axis=1).mean() > 0.4
    stands_on_it = other[bottom + 2 : bottom + 5, left : right + 1].any(0).mean() > 0.5
    if thing.sum() > 0.8 * whole and not stands_on_it:
        return "under"
    if enclosed:
        return "in"
    return "on" if thing.sum() > 0.8 * whole else "behind"


def relation_to_tree(frame: npt.NDArray[np.int16], whole: int) -> str:
    """The same for a tree with a blue crown."""
    left, _, right, _ = box(red(frame))
    o_left, _, o_right, _ = box(blue(frame))
    if o_left <= (left + right) / 2 <= o_right:
        return "under" if red(frame).sum() > 0.8 * whole else "behind"
    gap = max(o_left - right, left - o_right) - 1
    return "beside" if gap <= 4 else "near" if gap <= 14 else "elsewhere"


def item(name: str, colour: str, at: Json, **more: Any) -> Json:
    looks = {"modifier": None, "size": None, "material": None}
    noun = name.rstrip("0123456789")
    return {"id": name, "noun": noun, "colour": colour, "at": at, "fixed": NOUNS[noun].fixed, **looks, **more}


def on_floor(x: float) -> Json:
    return {"relation": "on", "target": FLOOR, "x": x}


def event(action: str, start: float, end: float, **roles: Any) -> Json:
    nothing = dict.fromkeys(("object", "relation", "target", "direction", "manner", "origin", "destination"))
    return {"start": start, "end": end, "agent": "agent1", "action": action, **nothing, "agent_x": [0.5, 0.5], **roles}


def scene(items: list[Json], events: list[Json], *, holding: str | None = None, x: float = 0.2) -> Json:
    agent = {"id": "agent1", "noun": "man", "colour": "white", "x": x, "holding": holding}
    duration = round(max(event["end"] for event in events) + 0.4, 1)
    setting = {"place": "office", "items": items}
    return {
        "vid": "T1",
        "split": "train",
        "duration": duration,
        "setting": setting,
        "agents": [agent],
        "events": events,
    }


def put_scene(related: str, noun: str) -> Json:
    """A man puts the red block in relation to a blue thing, and goes away."""
    state = {"open": True} if "open" in NOUNS[noun].affords else {}
    held = {"relation": "held", "target": "agent1", "x": 0.2}
    items = [item(f"{noun}1", "blue", on_floor(0.5), **state), item("block1", "red", held, size="small")]
    put = event(
        "put",
        0.5,
        2.5,
        object="block1",
        relation=related,
        target=f"{noun}1",
        origin=held,
        destination={"relation": related, "target": f"{noun}1", "x": 0.5},
    )
    return scene(items, [put, event("walk", 3.0, 5.0, direction="away", agent_x=[0.5, 0.05])], holding="block1")


def combinations() -> Iterator[tuple[str, str]]:
    for noun, kind in NOUNS.items():
        yield from ((related, noun) for related in ("on", "under", "behind", "in") if fits("block", related, noun))
        if not kind.portable and noun not in ("rug", "window"):
            yield from (("near", noun), ("beside", noun))


@pytest.mark.parametrize(("related", "noun"), list(combinations()))
def test_where_a_thing_is_put_is_seen(related: str, noun: str, rendered: Callable[[Json], Frames]) -> None:
    frames = rendered(put_scene(related, noun))
    measure = relation_to_tree if noun == "tree" else relation
    seen = measure(frames[-1], int(red(frames[0]).sum()))
    if (related, noun) == ("on", "shelf"):
        assert seen == "in"  # its board is between its posts
    elif (related, noun) == ("on", "rug"):
        assert seen in ("on", "in")  # seen around it, blue or dark by its edge
    else:
        assert seen == related


def alone(script: Json, described: Json) -> Json:
    """One event of a script in its own room, with a red block for its object, a blue target and furniture of no colour.

    What else lies about is left out, and the agent goes away in the end: nothing hides what is to be measured.
    """
    items = {thing["id"]: copy.deepcopy(thing) for thing in script["setting"]["items"]}
    target = items[described["target"]]
    kept = {name: thing for name, thing in items.items() if not NOUNS[thing["noun"]].portable}
    for number, thing in enumerate(kept.values()):
        thing.update(
            colour=("white", "grey")[number % 2], material=None, **({"open": False} if "open" in thing else {})
        )
    if target["id"] not in kept:
        target.update(at=on_floor(target["at"]["x"]), modifier=None)
    target.update(colour="blue", material=None, size=None, **({"open": True} if "open" in target else {}))
    held = described["origin"]["relation"] == "held"
    at = described["origin"] if held else on_floor(described["origin"]["x"])
    block = item("block1", "red", at)
    agent = {**next(agent for agent in script["agents"] if agent["id"] == described["agent"]), "colour": "white"}
    agent.update(id="agent1", x=described["agent_x"][0], holding="block1" if held else None)
    seconds = round(described["end"] - described["start"], 1)
    first = {**described, "agent": "agent1", "object": "block1", "start": 0.5, "end": round(0.5 + seconds, 1)}
    first["origin"] = {**at, "target": "agent1"} if held else at
    block["at"] = first["origin"]
    gone = event(
        "walk", seconds + 0.7, seconds + 2.7, direction="away", agent_x=[0.5, 0.05 if target["at"]["x"] > 0.5 else 0.95]
    )
    setting = {**script["setting"], "items": [*{**kept, target["id"]: target}.values(), block]}
    return {**script, "setting": setting, "agents": [agent], "events": [first, gone], "duration": round(seconds + 3, 1)}


def releases() -> list[tuple[Json, Json]]:
    """The scripts and events of the shipped data set that bring a thing into relation to another thing."""
    pairs = [(script, event) for script in SCRIPTS for event in script["events"]]
    return [
        (script, event)
        for script, event in pairs
        if event["destination"]
        and event["object"]
        and event["target"]
        and event["destination"]["target"] == event["target"]
        and event["destination"]["relation"] != "held"
        and event["target"] in {item["id"] for item in script["setting"]["items"]}
        and not event["target"].startswith("tree")
    ]


def measured(script: Json, described: Json, rendered: Callable[[Json], Frames]) -> tuple[str, str]:
    """What the shipped script says of an event's end, and what is seen there."""
    frames = rendered(alone(script, described))
    seen = relation(frames[-1], int(np.median(red(frames[:5]).sum((1, 2)))))
    expected = described["destination"]["relation"]
    return expected, "on" if (expected, seen) == ("on", "in") and described["target"].startswith(
        ("shelf", "rug")
    ) else seen


def test_the_shipped_scripts_show_what_they_say(rendered: Callable[[Json], Frames]) -> None:
    """Each of their rooms is another one: what is seen must be what is said (measured over all 462: 459 times)."""
    sample = random.Random(5).sample(releases(), 60)
    wrong = [
        (script["vid"], event["start"], *pair)
        for script, event in sample
        if len(set(pair := measured(script, event, rendered))) > 1
    ]
    assert len(wrong) <= 1, wrong


# --- colours, states, manners ----------------------------------------------------------------------------------------


def difference(first: Frames, second: Frames) -> Mask:
    return np.asarray(np.abs(first[0] - second[0]).max(-1) > 40)


def test_the_colour_of_a_thing_is_seen(rendered: Callable[[Json], Frames]) -> None:
    """Not by the drawing's own numbers: each must be nearest to what it is called among plain colours."""
    plain = {
        "red": (220, 30, 30),
        "blue": (40, 80, 230),
        "green": (30, 160, 50),
        "yellow": (255, 220, 0),
        "white": (255, 255, 255),
        "black": (0, 0, 0),
        "brown": (120, 70, 30),
        "orange": (255, 140, 0),
        "pink": (255, 130, 190),
        "grey": (128, 128, 128),
        "purple": (128, 40, 180),
    }
    videos = {}
    for colour in COLOURS:
        block = item("block1", colour, on_floor(0.5))
        videos[colour] = rendered(scene([block], [event("wave", 0.5, 1.5)]))
    for colour, frames in videos.items():
        mask = difference(frames, videos["white" if colour not in ("white", "grey", "pink", "yellow") else "black"])
        median = np.median(frames[0][mask], axis=0)
        distances = {name: np.abs(median - np.array(value)).sum() for name, value in plain.items()}
        assert min(distances, key=lambda name: distances[name]) == colour, (colour, median)


@pytest.mark.parametrize("noun", sorted(noun for noun, kind in NOUNS.items() if "open" in kind.affords))
def test_open_and_shut_look_different(noun: str) -> None:
    shut, opened = (
        scene([item(f"{noun}1", "blue", on_floor(0.5), open=state)], [event("wave", 0.5, 1.5)])
        for state in (False, True)
    )
    first, second = (next(playback.frames(script)).astype(np.int16) for script in (shut, opened))
    assert (np.abs(first - second).max(-1) > 50).sum() >= 25


def test_what_is_shut_shows_nothing_of_what_is_in_it(rendered: Callable[[Json], Frames]) -> None:
    inside = item("block1", "red", {"relation": "in", "target": "cabinet1", "x": 0.5})
    opening = event("open", 0.5, 2.5, object="cabinet1")
    frames = rendered(scene([item("cabinet1", "blue", on_floor(0.5), open=False), inside], [opening]))
    assert red(frames[0]).sum() < 3
    assert red(frames[-1]).sum() > 40


def test_a_lamp_that_is_on_shines(rendered: Callable[[Json], Frames]) -> None:
    turned = event("turn", 0.5, 2.5, object="lamp1", direction="on")
    frames = rendered(scene([item("lamp1", "blue", on_floor(0.5), lit=False)], [turned]))
    shine = [((frame[..., 0] > 225) & (frame[..., 1] > 215) & (frame[..., 2] < 215)).sum() for frame in frames]
    assert shine[0] < 20
    assert shine[-1] > 300


def test_lids_have_the_same_shapes_shut_and_open() -> None:
    for shut, opened in LIDDED.values():
        assert between(shut, opened, 0.5)


def pushed(manner: str | None, action: str = "push") -> tuple[Json, float]:
    """A red box that goes across the room, in as much time as the generator gives it."""
    usual = ACTIONS[action].seconds + 0.7 / SPEED
    seconds = round(usual * (MANNERS[manner] if manner else 1), 1)
    items = [item("box1", "red", on_floor(0.1), open=False)]
    described = event(
        action,
        0.5,
        0.5 + seconds,
        object="box1",
        direction="away",
        manner=manner,
        agent_x=[0.05, 0.95],
        origin=on_floor(0.1),
        destination=on_floor(0.95),
    )
    return scene(items, [described], x=0.05), seconds


def track(frames: Frames) -> npt.NDArray[np.float64]:
    """How far to the right the red thing is, frame by frame, from 0 to 1 of its way."""
    x = np.array([np.flatnonzero(red(frame).any(0)).mean() for frame in frames])
    return np.asarray((x - x[0]) / (x[-1] - x[0]), np.float64)


def test_how_it_is_done_is_seen(rendered: Callable[[Json], Frames]) -> None:
    moving, waiting, stops, soft = {}, {}, {}, {}
    for manner in (None, *MANNERS):
        script, seconds = pushed(manner)
        way = track(rendered(script))[5 : 6 + round(seconds * 10)]
        steps = np.diff(way)
        moving[manner] = np.sort(steps)[-len(steps) // 4 :].mean()  # share of the way in a frame, when it is fastest
        waiting[manner] = np.argmax(way > 0.03) / len(way)
        going = steps[np.argmax(way > 0.03) : np.argmax(way > 0.999)]
        soft[manner] = going[-4:].mean() / np.median(going)  # how fast it still is at the end
        still = (steps < 0.002) & (way[1:] > 0.03) & (way[1:] < 0.97)
        stops[manner] = int(((~still[:-1]) & still[1:]).sum())
    assert moving["slowly"] < 0.75 * moving[None]
    assert moving["quickly"] > 1.4 * moving[None]
    assert moving["suddenly"] > 1.4 * moving[None]
    assert waiting["suddenly"] > max(waiting["quickly"], waiting["slowly"], waiting["gently"]) + 0.15
    assert soft["gently"] < 0.5 < min(soft[None], soft["slowly"], soft["quickly"])
    assert stops["carefully"] >= 1
    assert stops["slowly"] == stops["quickly"] == 0


def test_a_thing_that_is_waved_quickly_swings_more_often_than_one_that_is_waved_slowly(
    rendered: Callable[[Json], Frames],
) -> None:
    turns = {}
    for manner in ("slowly", "quickly"):
        held = {"relation": "held", "target": "agent1", "x": 0.5}
        described = event("wave", 0.5, 3.5, object="hat1", manner=manner, origin=held, destination=held)
        frames = rendered(scene([item("hat1", "red", held)], [described], holding="hat1", x=0.5))[6:34]
        x = np.array([np.flatnonzero(red(frame).any(0)).mean() for frame in frames])
        turns[manner] = int((np.diff(np.sign(np.diff(x))) != 0).sum())
    assert turns["quickly"] >= turns["slowly"] + 3


def test_what_is_lifted_ends_higher_than_what_is_taken(rendered: Callable[[Json], Frames]) -> None:
    height = {}
    for action in ("take", "lift"):
        held = {"relation": "held", "target": "agent1", "x": 0.5}
        described = event(action, 0.5, 3.0, object="box1", origin=on_floor(0.6), destination=held)
        frames = rendered(scene([item("box1", "red", on_floor(0.6), open=False)], [described]))
        height[action] = box(red(frames[-1]))[3]
    assert height["lift"] < height["take"] - 12


@pytest.mark.parametrize("place", PLACES)
def test_a_place_looks_like_no_other(place: str) -> None:
    for other in set(PLACES) - {place}:
        assert (np.abs(background_of(place) - background_of(other)).max(-1) > 12).mean() > 0.5


def test_every_look_has_a_picture_of_its_own() -> None:
    """Each noun, colour, size, material and modifier makes a visible difference."""
    from penumbra.tasks.sample.scenes.looks import Look
    from penumbra.tasks.sample.scenes.world import PLACES as ROOMS
    from penumbra.tasks.sample.scenes.world import SIZES, materials_of

    def pixels(look: Look) -> npt.NDArray[np.float32]:
        sprite = picture(look)
        image = np.full((80, 80, 3), 190, np.float32)
        top, left = 70 + sprite.top, 40 + sprite.left
        part = image[top : top + sprite.alpha.shape[0], left : left + sprite.alpha.shape[1]]
        part *= 1 - sprite.alpha
        part += sprite.colour
        return image

    for noun, kind in NOUNS.items():
        plain = Look(noun, "red", None, None, None)
        others = [Look(noun, "blue", None, None, None), *(Look(noun, "red", None, None, size) for size in SIZES)]
        others += [Look(noun, "red", material, None, None) for material in materials_of(noun, novel=True)]
        others += [Look(noun, "red", None, modifier, None) for modifier in kind.modifiers if modifier not in ROOMS]
        shown = [pixels(look) for look in (plain, *others)]
        for i, first in enumerate(shown):
            for second in shown[i + 1 :]:
                assert (np.abs(first - second).max(-1) > 35).sum() >= 4, (noun, others[i - 1])


def test_scripts_of_any_seed_can_be_rendered() -> None:
    for seed in range(25):
        script = write_script(random.Random(seed), novel=seed % 3 == 0).record(f"X{seed}", "train")
        for number, frame in enumerate(playback.frames({**script, "duration": min(script["duration"], 8.0)})):
            assert frame.shape == (160, 160, 3), number
