"""The shipped CLIP: a real one, small, trained on scenes that are not the data set's, far better than chance."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPModel, CLIPTokenizer

from penumbra.tasks.features.clip import FOLDER, Clip, load
from penumbra.tasks.sample.scenes.render import read_scripts
from penumbra.tasks.sample.tiny_clip.attributes import AT_ONCE, GROUPS
from penumbra.tasks.sample.tiny_clip.clips import (
    FRAMES,
    LENGTH,
    QUARTERS,
    Moment,
    clips,
    is_new,
    known_scenes,
    moments,
    pictures_of_video,
)
from penumbra.tasks.sample.tiny_clip.clips import Clip as Sample
from penumbra.tasks.sample.tiny_clip.model import look_closely, new_model, see, stirring, to_patches, to_pixels
from penumbra.tasks.sample.tiny_clip.patches import AGENT, GRID, HUES, KINDS, NOTHING, NUMBERS, POSTURE
from penumbra.tasks.sample.tiny_clip.tokenizer import train_tokenizer
from penumbra.tasks.sample.tiny_clip.train import main
from penumbra.tasks.sample.tiny_clip.zero_shot import embed_moments, retrieval

pytestmark = [pytest.mark.slow, pytest.mark.long]

LARGEST = 8_000_000  # bytes


@pytest.fixture(scope="module")
def some() -> list[Moment]:
    return list(moments(77_000_000, 25))


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return list(clips(77_000_000, 12))


def test_it_is_a_real_clip_and_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= LARGEST
    assert not [path for path in FOLDER.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]
    model, tokenizer = CLIPModel.from_pretrained(FOLDER), CLIPTokenizer.from_pretrained(FOLDER)
    assert model.config.model_type == "clip"
    text = "a person opens the green door slowly, naïve 🙂"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") == text.replace(" ", "")
    assert ids[-1] == model.config.text_config.eos_token_id
    assert load(Clip(encoder="tiny-clip")).processing.crop == (160, 160)


def test_it_finds_held_out_sentences_better_than_chance(some: list[Moment]) -> None:
    encoder = load(Clip(encoder="tiny-clip", device="cpu"))
    sentences = [moment.sentence for moment in some]
    found = retrieval(*embed_moments(encoder.model, encoder.tokenizer, some, sentences), sentences)
    assert found["moments"] == len(some)
    assert found["moment_to_sentence_r5"] > 1.5 * found["chance_r5"]
    reported = json.loads((FOLDER / "retrieval.json").read_text())
    assert reported["moment_to_sentence_r1"] > reported["chance_r1"]
    assert reported["moment_to_sentence_r5"] > reported["chance_r5"]


def test_no_scene_of_the_data_set_is_among_those_it_learns_from() -> None:
    known = known_scenes()
    scripts = read_scripts()
    assert len(known) == len(scripts)
    assert not any(is_new(script, known) for script in scripts)
    renamed = {**scripts[0], "vid": "another", "split": "train", "duration": 1}
    assert not is_new(renamed, known)


def test_clips_are_what_they_say(samples: list[Sample]) -> None:
    for clip, same in zip(samples, clips(77_000_000, 12), strict=True):
        assert clip.pictures.shape == (FRAMES, 160, 160, 3)
        assert clip.pictures.tobytes() == same.pictures.tobytes()
        assert clip.sentences == same.sentences
        assert clip.maps.shape == (GRID, GRID, 2)
        assert clip.attributes.shape == (AT_ONCE, len(GROUPS))
        assert bool(clip.sentences) == bool(clip.attributes[0, 0]), "an action is told, and nothing of nothing"
    kinds = {KINDS[index] for clip in samples for index in np.unique(clip.maps[..., 0])}
    assert len(kinds) > 20
    assert {HUES[index] for clip in samples for index in np.unique(clip.maps[..., 1])} > {"red", "blue"}
    actions = {GROUPS["action"][row[0]] for clip in samples for row in clip.attributes}
    assert len(actions) > 8
    assert any(
        words in text for clip in samples for several in clip.sentences for text in several for words in actions - {""}
    )


def test_states_are_those_of_who_is_in_a_patch_and_change_only_where_something_happens(samples: list[Sample]) -> None:
    changing = POSTURE + 2  # its heading and the rest of its body: what it is like at the end less the beginning
    moved = []
    for clip in samples:
        owners, numbers = clip.states.owners, clip.states.numbers
        assert owners.shape == (GRID, GRID)
        assert numbers.shape == (GRID, GRID, NUMBERS)
        assert not numbers[owners == NOTHING].any()
        change = np.abs(numbers[owners == AGENT][:, changing:]).sum()
        if not clip.sentences and not stirring(to_patches(clip.pictures[None])).any():
            assert change == 0
        moved.append(change > 0)
    assert any(moved)


def test_moments_are_seen_in_each_quarter(some: list[Moment]) -> None:
    assert {moment.pictures.shape for moment in some} == {(QUARTERS, FRAMES, 160, 160, 3)}
    assert all(moment.sentence.endswith(".") for moment in some)


def test_a_video_s_clips_are_those_that_extraction_sees() -> None:
    script = read_scripts()[0]
    assert len(pictures_of_video(script)) == -(-script["duration"] // LENGTH)


def test_the_tower_over_patches_is_the_model_s_own(samples: list[Sample]) -> None:
    model = new_model(train_tokenizer(["a person opens a door."] * 3, 600)).eval()
    pictures = np.stack([clip.pictures for clip in samples[:4]])
    patches = to_patches(pictures)
    look_closely(model, patches[stirring(patches)])
    with torch.inference_mode():
        places = torch.arange(GRID * GRID).expand(4, -1)
        ours = see(model, torch.from_numpy(patches), places)[1]
        plain = model.get_image_features(to_pixels(pictures)).pooler_output
    assert (ours - plain).abs().max() < 0.02 * plain.abs().max()  # products of halves


def test_retrieval_counts_hits_and_chance() -> None:
    vectors = torch.eye(10)
    sentences = [str(i) for i in range(10)]
    perfect = retrieval(vectors, vectors, sentences)
    assert (perfect["moment_to_sentence_r1"], perfect["chance_r1"], perfect["chance_r5"]) == (100, 10, 40.95)
    rolled = retrieval(vectors, vectors.roll(1, 0), sentences)
    assert rolled["moment_to_sentence_r1"] == 0
    assert retrieval(vectors, vectors.roll(1, 0), ["same"] * 10)["moment_to_sentence_r1"] == 100


def test_any_text_has_tokens() -> None:
    tokenizer = train_tokenizer(["a person opens a door."] * 3, 600)
    assert len(tokenizer("a person opens a door.")["input_ids"]) == 8
    assert len(tokenizer("日本")["input_ids"]) > 2


def test_the_script_trains_saves_and_reports(tmp_path: Path) -> None:
    main(["--output", str(tmp_path), "--scenes", "25", "--held-out", "3", "--steps", "1"])
    assert CLIPModel.from_pretrained(tmp_path).config.projection_dim == 192
    assert json.loads((tmp_path / "retrieval.json").read_text())["steps"] == 1
    assert load(Clip(encoder=str(tmp_path), device="cpu")).processing.size == (160, 160)
