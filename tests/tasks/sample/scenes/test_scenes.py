"""The sample data set: reproducible, in the format of Charades-CG, compositional as it claims, consistent."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penumbra.tasks.data.dataset import SHIPPED
from penumbra.tasks.sample.scenes import generate
from penumbra.tasks.sample.scenes.actions import (
    ACTIONS,
    MANNERS,
    NOVEL_ADVERBS,
    NOVEL_PREPOSITIONS,
    NOVEL_VERBS,
    gerund,
    third_person,
)
from penumbra.tasks.sample.scenes.world import COLOURS, FLOOR, NOUNS

pytestmark = pytest.mark.slow

Json = dict[str, Any]
SPLITS = {"train": None, "test_trivial": None, "novel_composition": "novels", "novel_word": "news"}
TYPES = {"v-n", "a-n", "n-n", "v-adv", "p-n"}
DETERMINERS = {"a", "an", "the", "another", "is"}
PREPOSITIONS = {"at", "around", "from", "in", "into", "near", "on", "over", "to", "under", "behind", "beside"}
DIRECTIONS = {"up", "down", "off", "away"}
CLOSED = DETERMINERS | PREPOSITIONS | DIRECTIONS | {*MANNERS, *NOVEL_ADVERBS.values(), *NOVEL_PREPOSITIONS.values()}


class DataSet:
    """The five files, parsed."""

    def __init__(self, files: dict[str, str]) -> None:
        self.splits: dict[str, Json] = {name: json.loads(files[f"{name}.json"]) for name in SPLITS}
        self.scripts: dict[str, Json] = {
            row["vid"]: row for row in map(json.loads, files["scripts.jsonl"].splitlines())
        }

    def queries(self, split: str) -> Iterator[tuple[str, Any]]:
        """Each sentence of a split with its label."""
        for video in self.splits[split].values():
            labels = video.get(SPLITS[split], [None] * len(video["sentences"]))
            yield from zip(video["sentences"], labels, strict=True)

    def words(self, split: str) -> set[str]:
        return {word for text, _ in self.queries(split) for word in text.rstrip(".").split()}


@pytest.fixture(scope="module")
def shipped() -> DataSet:
    return DataSet({path.name: path.read_text() for path in generate.DATA.iterdir()})


@pytest.fixture(scope="module")
def other_files() -> dict[str, str]:
    return generate.data_set(videos=150, seed=6)


@pytest.fixture(scope="module", params=["shipped", "another seed"])
def data(request: pytest.FixtureRequest, shipped: DataSet) -> DataSet:
    return shipped if request.param == "shipped" else DataSet(request.getfixturevalue("other_files"))


def forms(verb: str) -> set[str]:
    return {verb, gerund(verb), third_person(verb)}


def clauses(text: str) -> list[list[str]]:
    return [clause.split() for clause in re.split(r" (?:and then|then|while) ", text.rstrip("."))]


def noun_phrase(words: list[str]) -> list[str]:
    """The words up to the next one that no noun phrase has inside."""
    return words[: next((i for i, word in enumerate(words) if word in CLOSED), len(words))]


def composes(clause: list[str], kind: str, first: str, second: str) -> bool:
    """Whether a clause puts two words together, judged by its words alone and rather too readily."""
    if kind in ("v-n", "v-adv"):
        return not forms(first).isdisjoint(clause) and second in clause
    after = [clause[i + 1 :] for i, word in enumerate(clause) if word == first]
    if kind == "p-n":
        return any(second in noun_phrase(rest[1:]) for rest in after if rest)
    return any(second in (noun_phrase(rest) if kind == "a-n" else rest[:1]) for rest in after)


# --- files -----------------------------------------------------------------------------------------------------------


def test_the_command_makes_the_shipped_files_to_the_byte(tmp_path: Path) -> None:
    generate.main(["--output", str(tmp_path)])
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(made) == 5
    for name, content in made.items():
        assert content == (generate.DATA / name).read_bytes(), f"{name} differs from the shipped one"


def test_the_shipped_files_lie_where_the_data_set_is_looked_for() -> None:
    assert generate.DATA.resolve() == SHIPPED


def test_another_seed_gives_other_files(other_files: dict[str, str]) -> None:
    for name, text in other_files.items():
        assert text != (generate.DATA / name).read_text()


@pytest.mark.parametrize(
    "arguments", [["--videos", "3"], ["--videos", "many"], ["--seed", "x"], ["--output", __file__]]
)
def test_a_bad_argument_gives_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "data_set", lambda videos, seed: {"train.json": "{}"})
    with pytest.raises(SystemExit) as exit_:
        generate.main(arguments)
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert error.count("\n") == 1
    assert arguments[1] in error


# --- format ----------------------------------------------------------------------------------------------------------


def test_videos_have_the_keys_of_charades_cg(data: DataSet) -> None:
    for split, label in SPLITS.items():
        for video in data.splits[split].values():
            assert set(video) == {"sentences", "timestamps", "duration"} | ({label} if label else set())
            assert len({len(value) for value in video.values() if isinstance(value, list)}) == 1
            assert len(set(video["sentences"])) == len(video["sentences"]) > 0
            assert all(re.fullmatch(r"[a-z]+( [a-z]+)+\.", text) for text in video["sentences"])


def test_windows_lie_inside_the_video(data: DataSet) -> None:
    for video in (video for split in data.splits.values() for video in split.values()):
        assert 2 <= video["duration"] <= 30
        for start, end in video["timestamps"]:
            assert 0 <= start < end <= video["duration"]
            assert [start, end] == [round(start, 1), round(end, 1)]


def test_a_video_is_in_one_split(data: DataSet) -> None:
    vids = [(vid, split) for split, videos in data.splits.items() for vid in videos]
    assert len(dict(vids)) == len(vids)
    assert dict(vids) == {vid: script["split"] for vid, script in data.scripts.items()}


def test_the_shipped_set_is_large_and_small_enough(shipped: DataSet) -> None:
    sizes = {split: sum(1 for _ in shipped.queries(split)) for split in SPLITS}
    assert sizes["train"] >= 1000
    assert all(200 <= size <= 350 for split, size in sizes.items() if split != "train")
    assert sum(path.stat().st_size for path in generate.DATA.iterdir()) < 1_500_000


# --- splits ----------------------------------------------------------------------------------------------------------


def test_a_novel_composition_is_in_its_sentence_and_in_no_training_sentence(data: DataSet) -> None:
    training = [clause for text, _ in data.queries("train") for clause in clauses(text)]
    labels = [
        (text, kind, *pair)
        for text, label in data.queries("novel_composition")
        for kind, pairs in label.items()
        for pair in pairs
    ]
    for text, kind, first, second in labels:
        assert any(composes(clause, kind, first, second) for clause in clauses(text)), (text, kind, first, second)
    for kind, first, second in {label[1:] for label in labels}:
        assert not any(composes(clause, kind, first, second) for clause in training), (kind, first, second)


def test_both_words_of_a_novel_composition_are_in_training(data: DataSet) -> None:
    known = data.words("train")
    for text, label in data.queries("novel_composition"):
        assert set(text.rstrip(".").split()) <= known
        for first, second in (pair for pairs in label.values() for pair in pairs):
            assert not forms(first).isdisjoint(known)
            assert second in known


def test_every_sentence_is_labelled_and_all_types_are_there(data: DataSet, shipped: DataSet) -> None:
    labels = [label for _, label in data.queries("novel_composition")]
    assert all(labels)
    assert {kind for label in labels for kind in label} == TYPES
    counts = {kind: sum(kind in label for label in labels) for kind in TYPES}
    assert data is not shipped or min(counts.values()) >= 25, counts


def test_exactly_the_novel_words_are_not_in_training(data: DataSet) -> None:
    known = data.words("train")
    for text, label in data.queries("novel_word"):
        new = {word for words in label.values() for word in words}
        unseen = set(text.rstrip(".").split()) - known
        assert new
        assert all(forms(word).isdisjoint(known) for word in new)
        assert len(unseen) == len(new)
        assert unseen <= {form for word in new for form in forms(word)}


def test_the_trivial_test_has_known_words_and_no_test_query_is_a_training_query(data: DataSet) -> None:
    assert data.words("test_trivial") <= data.words("train")
    training = {text for text, _ in data.queries("train")}
    for split in set(SPLITS) - {"train"}:
        assert training.isdisjoint(text for text, _ in data.queries(split))


# --- sentences and events --------------------------------------------------------------------------------------------


def test_every_sentence_has_its_events_and_their_window(data: DataSet) -> None:
    for vid, script in data.scripts.items():
        video = data.splits[script["split"]][vid]
        assert 1 <= len(script["events"]) <= 5
        assert script["duration"] == video["duration"]
        described = [index for event in script["events"] for index in event["sentences"]]
        assert set(described) == set(range(len(video["sentences"])))
        for index, window in enumerate(video["timestamps"]):
            events = [event for event in script["events"] if index in event["sentences"]]
            assert window == [min(event["start"] for event in events), max(event["end"] for event in events)]


def test_sentences_say_what_the_script_shows(data: DataSet) -> None:
    for vid, script in data.scripts.items():
        items = {item["id"]: item for item in script["setting"]["items"]}
        for index, text in enumerate(data.splits[script["split"]][vid]["sentences"]):
            events = [event for event in script["events"] if index in event["sentences"]]
            assert len(clauses(text)) == len(events)
            for event, clause in zip(events, clauses(text), strict=True):
                check_clause(clause, event, items)


def check_clause(clause: list[str], event: Json, items: dict[str, Json]) -> None:
    """Verb, manner, object and looks are those of the event."""
    verbs = (*ACTIONS[event["action"]].verbs, *NOVEL_VERBS.get(event["action"], ()))
    assert any(not forms(verb).isdisjoint(clause) for verb in verbs), (clause, event)
    manners = {
        word
        for manner, word in [*zip(MANNERS, MANNERS, strict=True), *NOVEL_ADVERBS.items()]
        if manner != event["manner"]
    }
    assert manners.isdisjoint(clause), (clause, event)
    involved = [items[role] for role in (event["object"], event["target"]) if role in items]
    if event["object"]:
        assert involved[0]["noun"] in clause, (clause, event)
    looks = {item[look] for item in involved for look in ("colour", "material")}
    adjectives = {*COLOURS, "purple", "wooden", "metal", "striped", "dotted"} & set(clause)
    assert adjectives <= looks, (clause, event)
    things = {word for word in clause if word in NOUNS}
    assert things <= {word for item in involved for word in (item["noun"], item["modifier"], "door")}, (clause, event)


# --- a simulator ------------------------------------------------------------------------------------------------------


class Replay:
    """Plays a script with rules of its own; an event that can't happen raises AssertionError."""

    def __init__(self, script: Json) -> None:
        setting = script["setting"]
        self.items: dict[str, Json] = {item["id"]: {**item} for item in setting["items"]}
        self.at = {name: (item["at"]["relation"], item["at"]["target"]) for name, item in self.items.items()}
        self.spot = {name: item["at"]["x"] for name, item in self.items.items()}
        self.x = {agent["id"]: agent["x"] for agent in script["agents"]}
        self.seats: dict[str, str] = {}
        self.place, self.duration, self.clock = setting["place"], script["duration"], 0.0
        self.busy = dict.fromkeys(self.x, 0.0)
        for agent in script["agents"]:
            assert self.held(agent["id"]) == ([agent["holding"]] if agent["holding"] else [])

    def run(self, events: list[Json]) -> None:
        for event in events:
            self.check_times(event)
            self.check_roles(event)
            getattr(self, f"do_{GROUPS[event['action']]}")(event, event["agent"], event["object"])
            self.check_world()

    def held(self, agent: str) -> list[str]:
        return [name for name, at in self.at.items() if at == ("held", agent)]

    def hidden(self, name: str) -> bool:
        relation, target = self.at[name]
        return relation == "in" and (self.items[target].get("open") is False or self.hidden(target))

    def on_floor(self, name: str) -> bool:
        return self.at[name][1] == FLOOR or self.at[name][0] in ("near", "beside")

    def check_times(self, event: Json) -> None:
        assert self.clock <= event["start"] < event["end"] <= self.duration
        assert self.busy[event["agent"]] <= event["start"], "an agent does two things at once"
        self.clock, self.busy[event["agent"]] = event["start"], event["end"]

    def check_roles(self, event: Json) -> None:
        agent, target = event["agent"], event["target"]
        assert event["agent_x"][0] == self.x[agent], "an agent jumps between events"
        self.x[agent] = event["agent_x"][1]
        assert abs(event["agent_x"][1] - event["agent_x"][0]) <= event["end"] - event["start"], "nobody is that fast"
        assert target is None or target in {*self.items, *self.x, FLOOR, self.place}
        assert target is None or target not in self.items or not self.hidden(target)
        assert agent not in self.seats or event["action"] in ("stand", "wave", "shake", "hug")
        if event["object"]:
            origin = event["origin"]
            assert (origin["relation"], origin["target"]) == self.at[event["object"]], "it is somewhere else"
            assert not self.hidden(event["object"]), "it is shut away"
            assert origin["relation"] in ("held", "in") or origin["x"] == self.spot[event["object"]], "it has moved"

    def check_world(self) -> None:
        assert all(len(self.held(agent)) <= 1 for agent in self.x), "two things in the same hands"
        assert all(0 <= x <= 1 for x in (*self.x.values(), *self.spot.values()))

    def arrive(self, event: Json) -> None:
        """The object goes where the event says, which is what its relation and target mean."""
        destination = (event["destination"]["relation"], event["destination"]["target"])
        assert destination[1] in {*self.items, *self.x, FLOOR}
        assert destination[1] != event["object"]
        if event["target"] in self.items and event["relation"] != "from" and event["action"] != "carry":
            meant = "near" if event["relation"] == "to" else event["relation"]
            assert destination == (meant, event["target"])
        if destination[0] == "in":
            assert self.items[destination[1]].get("open") is not False, "it is put into something closed"
        self.at[event["object"]], self.spot[event["object"]] = destination, event["destination"]["x"]

    def do_get(self, event: Json, agent: str, name: str) -> None:
        assert not self.items[name]["fixed"]
        assert self.at[name][0] != "held"
        if event["relation"]:
            assert self.at[name][1] == event["target"]
        self.arrive(event)
        assert self.at[name] == ("held", agent)

    def do_release(self, event: Json, agent: str, name: str) -> None:
        assert self.at[name] == ("held", agent), "nobody can put what is not in the hand"
        self.arrive(event)
        gone = event["action"] != "carry"
        assert (self.at[name] != ("held", agent)) == gone

    def do_slide(self, event: Json, agent: str, name: str) -> None:
        assert self.on_floor(name)
        assert not self.items[name]["fixed"]
        assert not [other for other, at in self.at.items() if at[1] == name and at[0] != "in"]
        self.arrive(event)

    def do_lid(self, event: Json, agent: str, name: str) -> None:
        opens = event["action"] == "open"
        assert self.at[name][0] != "held"
        assert self.items[name]["open"] is not opens, "it is open, or closed, already"
        self.items[name]["open"] = opens

    def do_turn(self, event: Json, agent: str, name: str | None) -> None:
        if name is not None:
            assert event["direction"] == ("off" if self.items[name]["lit"] else "on")
            self.items[name]["lit"] = not self.items[name]["lit"]

    def do_in_hand(self, event: Json, agent: str, name: str | None) -> None:
        assert name is None or self.at[name] == ("held", agent)
        assert event["target"] != agent

    def do_go(self, event: Json, agent: str, name: None) -> None:
        assert not self.held(agent), "that would be to carry"

    def do_sit(self, event: Json, agent: str, name: None) -> None:
        seat = event["target"] if event["relation"] == "on" else FLOOR
        assert seat == FLOOR or "seat" in NOUNS[self.items[seat]["noun"]].affords
        self.seats[agent] = seat

    def do_stand(self, event: Json, agent: str, name: None) -> None:
        assert self.seats.pop(agent, None) == event["target"], "it gets up from where it does not sit"

    def do_other(self, event: Json, agent: str, name: str | None) -> None:
        assert name is None or self.at[name][0] != "held"


GROUPS = {
    **dict.fromkeys(("take", "pick", "lift"), "get"),
    **dict.fromkeys(("put", "drop", "throw", "give", "carry"), "release"),
    **dict.fromkeys(("push", "pull", "roll", "kick"), "slide"),
    **dict.fromkeys(("open", "close"), "lid"),
    **dict.fromkeys(("shake", "wave", "bounce", "hug"), "in_hand"),
    **dict.fromkeys(("walk", "run"), "go"),
    **dict.fromkeys(("spin", "jump"), "other"),
    **{name: name for name in ("turn", "sit", "stand")},
}


def test_every_script_can_be_played(data: DataSet) -> None:
    for vid, script in data.scripts.items():
        try:
            Replay(script).run(script["events"])
        except AssertionError as error:
            pytest.fail(f"{vid}: {error}")


def test_no_event_of_a_video_is_like_another(data: DataSet) -> None:
    for script in data.scripts.values():
        likes = [(GROUPS[event["action"]] == "get" or event["action"], event["object"]) for event in script["events"]]
        assert len(set(likes)) == len(likes)


def test_two_things_with_one_name_differ_in_colour(data: DataSet) -> None:
    for script in data.scripts.values():
        looks = [(item["noun"], item["colour"]) for item in script["setting"]["items"]]
        assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("damage", ["twice", "not held", "closed", "elsewhere", "late"])
def test_the_simulator_notices(shipped: DataSet, damage: str) -> None:
    def wanted(event: Json) -> bool:
        return bool(
            {
                "twice": event["action"] == "open",
                "not held": event["action"] == "put",
                "closed": event["action"] == "close",
            }.get(damage, event["object"])
        )

    script = next(row for row in shipped.scripts.values() if any(map(wanted, row["events"])))
    script = json.loads(json.dumps(script))
    event = next(filter(wanted, script["events"]))
    if damage in ("twice", "closed"):
        item = next(item for item in script["setting"]["items"] if item["id"] == event["object"])
        item["open"] = not item["open"]
    elif damage == "not held":
        event["origin"]["relation"] = "on"
    elif damage == "elsewhere":
        event["origin"]["target"] = "moon"
    else:
        event["end"] = script["duration"] + 1
    with pytest.raises(AssertionError):
        Replay(script).run(script["events"])
