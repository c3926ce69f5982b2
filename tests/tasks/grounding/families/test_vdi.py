"""VDI in training with the shipped CLIP, and the static and dynamic parts of queries."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from penumbra.tasks.features.clip import Clip, load
from penumbra.tasks.features.errors import FeatureError
from penumbra.tasks.grounding.batches.examples import Examples
from penumbra.tasks.grounding.configs import Training
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.families.vdi import ClipText, VDIConfig, VDILossConfig, token_ids
from penumbra.tasks.grounding.training.loop import train
from penumbra.tasks.grounding.training.presets import Settings
from penumbra.tasks.text.tags import load_pipeline, tag_texts
from penumbra.tasks.text.visual_dynamic_queries import split_query
from tests import grounding_data
from tests.grounding_data import TINY_MAP, make_examples, rows

pytestmark = pytest.mark.slow

TINY = Clip(encoder="tiny-clip")


@pytest.mark.parametrize(
    ("query", "static", "dynamic"),
    [
        ("a person puts the cup under the table.", "a person the cup the table", "puts under"),
        ("the person gently opens the window.", "the person the window", "gently opens"),
        ("sit down.", None, None),
        ("a red cup.", None, None),
        ("...", None, None),
    ],
)
def test_a_query_is_split_where_it_has_both_parts(query: str, static: str | None, dynamic: str | None) -> None:
    tokens = next(iter(tag_texts([query], load_pipeline("penumbra"))))
    found = split_query(tokens)
    assert found == ((query, query, False) if static is None else (static, dynamic, True))


def settings(**model: Any) -> Settings:
    return Settings(
        model=VDIConfig(clip_encoder="tiny-clip", losses=VDILossConfig(shine=True), ablation={**TINY_MAP, **model}),
        training=Training(epochs=1, batch_size=4, learning_rate=1e-3, clip_norm=5.0, evaluate_every=1),
    )


def examples() -> Examples:
    """Eight queries, the last without parts."""
    width = load(TINY).model.config.projection_dim
    found = rows(8)
    videos = grounding_data.videos()
    generator = torch.Generator().manual_seed(0)
    videos = replace(videos, values=torch.randn(len(videos.values), width, generator=generator))
    parts = {row["qid"]: ("a person", f"opens {number}") for number, row in enumerate(found[:-1])}
    prepared = make_examples(
        found, grounding_data.negatives(found), videos, grounding_data.texts(8), parts={**parts, "q7": ("text 7",) * 2}
    )
    assert prepared.notes["query that has no static and dynamic part"] == 1
    return prepared


def test_the_text_encoder_learns_at_a_tenth_of_the_rate_and_all_losses_are_numbers(tmp_path: Path) -> None:
    chosen = settings()
    work, system = examples(), system_of(chosen)
    fresh = ClipText("tiny-clip").state_dict()
    terms = {row["name"]: row["value"] for row in train(chosen, work, work, tmp_path)}
    assert terms["visual_context"] > 0
    assert "spatial_dynamics" not in terms  # there are no patch features here
    model = system.build(work.videos.channels, work.texts.channels)
    rest, text = system.parameters(model)
    assert (rest["scale"], text["scale"]) == (1.0, 0.1)
    assert len(text["params"]) == len(list(model.get_submodule("text_encoder").parameters()))
    saved = load_file(next(tmp_path.glob("last-*.safetensors")))
    name = "model.text_projection.weight"
    assert not torch.equal(saved[f"model.text_encoder.{name}"], fresh[name])
    weights = {key.removeprefix("model."): value for key, value in saved.items() if key.startswith("model.")}
    assert system.widths(weights) == (work.videos.channels, load(TINY).model.config.text_config.hidden_size)


def test_texts_have_the_features_that_clip_gives_them() -> None:
    encoder = load(TINY, on_cpu=True)
    texts = ["a person opens the door.", "a cup."]
    ids = token_ids(texts, encoder)
    longest = int(ids.lengths.max())
    padded = torch.zeros(2, longest, dtype=torch.long)
    for row in range(2):
        own = ids.values[ids.offsets[row] : ids.offsets[row + 1]]
        padded[row, : len(own)] = own
    with torch.no_grad():
        found = ClipText("tiny-clip").eval()(padded, torch.arange(longest) < ids.lengths[:, None])
        for row in range(2):
            wanted = encoder.model.get_text_features(padded[row : row + 1, : int(ids.lengths[row])]).pooler_output
            torch.testing.assert_close(found[row : row + 1], wanted, rtol=1e-4, atol=1e-5)


def test_a_frozen_text_encoder_is_in_no_group_and_frames_of_another_space_are_refused() -> None:
    system = system_of(settings(text_rate=0.0))
    width = load(TINY).model.config.projection_dim
    assert [group["scale"] for group in system.parameters(system.build(width, 1))] == [1.0]
    with pytest.raises(FeatureError, match=f"tiny-clip, which have {width} channels, not 9"):
        system.build(9, 1)
