"""What an ideal observer tells of a scene: as many clips as the video has, what is held, and nothing of the words."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penumbra.tasks.sample.scenes import observe
from penumbra.tasks.sample.scenes.observe import BODY, KINDS, LOOK, STATE, ObservedScript
from penumbra.tasks.sample.scenes.playback import frames_with_scenes, scenes_by_frame
from penumbra.tasks.sample.scenes.render import read_scripts

pytestmark = pytest.mark.slow

THING = LOOK + 3 * BODY  # where the channels of what the first agent is busy with begin


@pytest.fixture(scope="module")
def scripts() -> list[dict[str, Any]]:
    return read_scripts()[:40]


def test_a_row_for_each_clip(scripts: list[dict[str, Any]]) -> None:
    for script in scripts[:5]:
        for length in (0.5, 1.0):
            clips = ObservedScript(script).clips(length)
            assert len(clips) == math.ceil(round(script["duration"] / length, 6))
            assert np.isfinite(clips).all()


def test_the_scene_is_the_one_that_is_painted(scripts: list[dict[str, Any]]) -> None:
    painted = [[person.x for person in scene.people.values()] for scene, _ in frames_with_scenes(scripts[0])]
    assert [[person.x for person in scene.people.values()] for scene, _ in scenes_by_frame(scripts[0])] == painted


def test_what_an_agent_comes_to_hold_is_told(scripts: list[dict[str, Any]]) -> None:
    checked = 0
    for script in scripts:
        nouns = {item["id"]: item["noun"] for item in script["setting"]["items"]}
        if len(script["agents"]) > 1:
            continue
        clips = ObservedScript(script).clips(0.5)
        for event in script["events"]:
            if event["action"] in ("take", "pick", "lift"):
                clip = clips[int(event["end"] / 0.5) - 1]
                assert KINDS[clip[THING : THING + len(KINDS)].argmax()] == nouns[event["object"]]
                checked += 1
    assert checked > 5


def test_where_nothing_happens_nothing_moves(scripts: list[dict[str, Any]]) -> None:
    script = scripts[0]
    clips = ObservedScript(script).clips(0.5)
    busy = {
        int(t / 0.5) for event in script["events"] for t in np.arange(event["start"] - 0.1, event["end"] + 0.2, 0.1)
    }
    still = [clip for number, clip in enumerate(clips) if number not in busy]
    assert still
    for clip in still:
        assert not clip[LOOK + BODY : LOOK + 3 * BODY].any()
        assert not clip[THING + LOOK + STATE : THING + LOOK + 3 * STATE].any()


def test_words_are_not_told(scripts: list[dict[str, Any]]) -> None:
    script = scripts[0]
    events = [{**event, "sentences": []} for event in script["events"]]
    silent = {**script, "split": "novel_word", "events": events}
    assert np.array_equal(ObservedScript(script).clips(0.5), ObservedScript(silent).clips(0.5))


@pytest.mark.parametrize("scripts", ["/nosuch/file", __file__])
def test_scripts_that_are_none_are_one_line(scripts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        observe.main([str(tmp_path / "new"), "--scripts", scripts])
    message = capsys.readouterr().err
    assert end.value.code == 2
    assert message.count("\n") == 1
    assert scripts in message
    assert not (tmp_path / "new").exists()
