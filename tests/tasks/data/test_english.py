"""Sentences in other languages are detected, and no real English sentence is taken for one."""

import json
from pathlib import Path

import pytest

from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset, read_rows
from penumbra.tasks.data.english import foreign

OTHERS = {
    "German": ["Die Frau geht in die Küche.", "Person schließt das Fenster"],
    "French": ["une personne ouvre la porte.", "Il lance le ballon.", "le cuisinier épluche une pomme de terre"],
    "Spanish": ["una persona bebe un vaso de agua"],
    "Italian": ["La donna entra in cucina.", "Un uomo è seduto sul divano."],
    "Portuguese": ["A mulher entra na cozinha.", "o cozinheiro descasca uma batata"],
    "Dutch": ["een persoon opent de deur.", "de kok schilt een aardappel"],
    "Swedish": ["En man sitter i soffan och läser en bok."],
    "Polish": ["Mężczyzna siedzi na kanapie i czyta książkę."],
    "Turkish": ["Bir adam kanepede oturuyor ve kitap okuyor."],
    "another language": ["một người mở cửa.", "binubuksan ng tao ang pinto.", "mtu anafungua mlango."],
}
ENGLISH = [
    "person laughs.",
    "t",
    "person opend the door,sneezed.",
    "PERSON OPENS THE DOOR.",
    "litle kid is riding a bicycle.",
    "BLM protestor chanting there slogans",
    '"Salerno Dal 14 Luglio Al 4 Agosto La Tradizione Continua" animates on screen.',
    "American girl havinfg desi breakfast poori terkari in Delhi",
    "Vlogger tours the Siwa Oasis.",
    "Justine Bieber giving TV interview",
]


@pytest.mark.parametrize("sentence", [sentence for several in OTHERS.values() for sentence in several])
def test_another_language_is_detected(sentence: str) -> None:
    assert foreign(sentence)
    assert foreign(f'"{sentence}"')
    assert foreign(sentence.upper())


@pytest.mark.parametrize("sentence", ENGLISH)
def test_english_passes_with_misspellings(sentence: str) -> None:
    assert foreign(sentence) == ""


def test_no_real_query_is_taken_for_another_language(shared: Path) -> None:
    paths = [
        path
        for pattern in ("*-cg/*.json", "charades-sta/*.jsonl", "qvh*/*.jsonl")
        for path in shared.glob(f"data/{pattern}")
    ]
    queries = [str(row.query) for path in paths for row in read_rows(path, "train")]
    assert len(queries) > 110_000
    assert [query for query in queries if foreign(query)] == []


def test_queries_in_other_languages_are_rejected_unless_all_are_wanted(tmp_path: Path) -> None:
    sentences = {"a": "a person opens the door.", "b": "der Koch schält eine Kartoffel", "c": "mtu anafungua mlango."}
    usual = {"vid": "v", "duration": 9, "relevant_windows": [[1, 2]]}
    lines = [json.dumps({"qid": qid, "query": query, **usual}) for qid, query in sentences.items()]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    dataset = Dataset(name="own", folder=str(tmp_path))
    [make] = Annotations(dataset).parts()
    part = make()
    assert part.rows["qid"].to_pylist() == ["a"]
    assert {row["qid"]: row["reason"] for row in part.rejected} == {
        "b": "query is not in English, but in German",
        "c": "query is not in English, but in another language",
    }
    every = dataset.model_copy(update={"english": False})
    [make] = Annotations(every).parts()
    assert make().rows["qid"].to_pylist() == ["a", "b", "c"]
    assert Annotations(every).work.key != Annotations(dataset).work.key
    assert "english" not in Annotations(dataset).determines(), "a default does not enter the key"
