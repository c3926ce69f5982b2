"""Clips made of sentences: what is planted where, that the seed decides all, and what can't be simulated."""

from typing import Any

import numpy as np

from penumbra.artifacts.store import Store
from penumbra.tasks.features.reading import read_features
from penumbra.tasks.features.simulated import Planted, SimulatedFeatures, Simulation, World, concepts_of
from penumbra.tasks.stage import build as run_stage
from tests.rows import annotation, build, token

QUIET = {"other_events": 0.0, "background": 0.0, "noise": 0.0}
OPEN, CLOSE, RUN = (("door", 1.0), ("open", 1.0)), (("close", 1.0), ("window", 1.0)), (("run", 1.0),)
TRAINING = [OPEN, CLOSE, RUN, (("close", 1.0), ("door", 1.0))]
OPENS = [token("person", "noun", subject=True), token("open", "verb"), token("door", "noun")]
RUNS = [token("person", "noun", subject=True), token("run", "verb")]


def world(**changes: Any) -> World:
    return World([OPEN, CLOSE, RUN], TRAINING, Simulation(difficulty="medium").numbers() | QUIET | changes)


def test_a_sentence_s_concepts_are_its_primitives_but_for_the_subject() -> None:
    person, again = token("person", "noun", subject=True), token("door", "noun")
    tokens = [person, token("be"), token("open", "verb"), token("big", "adjective"), token("door", "noun"), again]
    assert concepts_of(tokens) == (("big", 0.6), ("door", 1.0), ("open", 1.0))


def test_a_sentence_is_in_its_window_and_nowhere_else() -> None:
    found = world()
    clips = found.video("v", 6.0, [Planted(OPEN, ((0.5, 3.0),))], 1.0).astype(np.float64)
    wanted = found.vector(OPEN) @ found.map
    assert clips.shape == (6, 256)
    assert np.abs(clips[1:3] - wanted).max() < 0.01
    assert np.abs(clips[0] - 0.5 * wanted).max() < 0.01, "the window covers a half of the first clip"
    assert not clips[3:].any()


def test_an_other_event_never_says_what_the_video_s_own_sentence_does() -> None:
    found, own = world(sharing=1.0), [Planted(OPEN, ((0.0, 1.0),))]
    draws = np.random.default_rng(0)
    events = {found.other_event(own, draws) for _ in range(200)}
    assert OPEN not in events
    assert (("close", 1.0), ("door", 1.0)) in events, "it shares a word"
    assert RUN not in events, "it shares none"


def test_what_can_not_be_simulated_is_rejected_with_its_reason(store: Store) -> None:
    rows = [
        {"vid": "good", "duration": 5.0, "windows": [[0.0, 2.0]]},
        {"vid": "short", "duration": 0.5, "windows": [[0.0, 0.5]]},
        {"vid": "hidden", "duration": 5.0, "windows": []},
        {"vid": "wordless", "duration": 5.0, "windows": [[0.0, 2.0]]},
        {"vid": "good", "duration": 5.5, "windows": [[3.0, 4.0]]},
    ]
    tokens = enumerate([OPENS, OPENS, OPENS, OPENS[:1], RUNS])
    annotations = build(store, "annotations", [annotation(str(i), "q", **row) for i, row in enumerate(rows)])
    tags = build(store, "tags", [{"qid": str(i), "tokens": words} for i, words in tokens])
    artifact = run_stage(SimulatedFeatures(annotations, tags, Simulation(difficulty="easy"), 1.0))
    found = read_features(artifact)
    assert [*found.index] == ["good"]
    assert found["good"].shape == (6, 256)
    reasons = {row["qid"]: row["reason"] for part in store.rejected(artifact) for row in part.to_pylist()}
    nothing = dict.fromkeys(("hidden", "wordless"), "no sentence with a window and a word that could be planted")
    assert reasons == {"short": "video is shorter than a clip", **nothing}
    assert store.manifest(artifact).parameters["encoder"] == "simulated"


def test_a_video_s_clips_depend_on_its_id_and_the_seed_alone() -> None:
    own = [Planted(OPEN, ((1.0, 3.0),))]
    simulation = {"other_events": 4.0, "background": 0.6, "noise": 2.5}
    one, other = world(**simulation), world(**simulation)
    first = one.video("v", 9.0, own, 1.0)
    assert not np.array_equal(first, one.video("w", 9.0, own, 1.0))
    assert np.array_equal(first, other.video("v", 9.0, own, 1.0))
    assert not np.array_equal(first, world(**simulation, seed=1).video("v", 9.0, own, 1.0))
