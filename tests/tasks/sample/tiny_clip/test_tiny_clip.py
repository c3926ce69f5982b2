"""The shipped CLIP: a real one, small, trained on scenes that are not the data set's, better than chance."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import CLIPModel, CLIPTokenizer

from penumbra.tasks.features.clip import FOLDER, Clip, load
from penumbra.tasks.sample.scenes.render import read_scripts
from penumbra.tasks.sample.tiny_clip.moments import (
    FRAMES,
    GRID,
    HUES,
    KINDS,
    Moment,
    caption,
    is_new,
    known_scenes,
    moments,
)
from penumbra.tasks.sample.tiny_clip.tokenizer import train_tokenizer
from penumbra.tasks.sample.tiny_clip.train import main, to_pixels
from penumbra.tasks.sample.tiny_clip.zero_shot import embed_moments, retrieval

LARGEST = 4_000_000  # bytes


@pytest.fixture(scope="module")
def some() -> list[Moment]:
    return list(moments(77_000_000, 25))


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
    sentences = [moment.sentences[0] for moment in some]
    found = retrieval(*embed_moments(encoder.model, encoder.tokenizer, to_pixels, some, sentences), sentences)
    assert found["moments"] == len(some)
    assert found["moment_to_sentence_r5"] > 1.5 * found["chance_r5"]
    reported = json.loads((FOLDER / "retrieval.json").read_text())
    assert reported["moment_to_sentence_r1"] > reported["chance_r1"]
    assert reported["moment_to_sentence_r5"] > reported["chance_r5"]


def test_no_scene_of_the_data_set_is_among_those_it_learns_from(some: list[Moment]) -> None:
    known = known_scenes()
    scripts = read_scripts()
    assert len(known) == len(scripts)
    assert not any(is_new(script, known) for script in scripts)
    renamed = {**scripts[0], "vid": "another", "split": "train", "duration": 1}
    assert not is_new(renamed, known)


def test_moments_are_what_they_say(some: list[Moment]) -> None:
    again = list(moments(77_000_000, 25))
    chance = np.random.default_rng(0)
    for moment, same in zip(some, again, strict=True):
        assert moment.pictures.shape == (FRAMES, 160, 160, 3)
        assert moment.pictures.tobytes() == same.pictures.tobytes()
        assert moment.sentences == same.sentences
        assert moment.maps.shape == (FRAMES, GRID, GRID, 2)
        words = caption(moment, chance)
        assert any(thing.name in words for thing in moment.things)
    kinds = {KINDS[index] for moment in some for index in np.unique(moment.maps[..., 0])}
    assert len(kinds) > 20
    assert {HUES[index] for moment in some for index in np.unique(moment.maps[..., 1])} > {"red", "blue"}


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
    assert CLIPModel.from_pretrained(tmp_path).config.projection_dim == 96
    assert json.loads((tmp_path / "retrieval.json").read_text())["steps"] == 1
    assert load(Clip(encoder=str(tmp_path), device="cpu")).processing.size == (160, 160)
