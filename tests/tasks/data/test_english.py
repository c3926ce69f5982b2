"""Sentences in other languages are detected, and no real English sentence is taken for one."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penumbra.tasks.data.annotations import Annotations
from penumbra.tasks.data.dataset import Dataset, read_rows
from penumbra.tasks.data.english import foreign

OTHERS = {
    "German": ["Die Frau geht in die Küche.", "Er wirft den Ball.", "Person schließt das Fenster"],
    "French": ["une personne ouvre la porte.", "Il lance le ballon.", "le cuisinier épluche une pomme de terre"],
    "Spanish": ["una persona abre la puerta.", "una persona bebe un vaso de agua"],
    "Italian": ["La donna entra in cucina.", "Un uomo è seduto sul divano."],
    "Portuguese": ["A mulher entra na cozinha.", "o cozinheiro descasca uma batata"],
    "Dutch": ["een persoon opent de deur.", "de kok schilt een aardappel"],
    "Swedish": ["en person öppnar dörren.", "En man sitter i soffan och läser en bok."],
    "Danish": ["En mand sidder i sofaen og læser en bog."],
    "Norwegian": ["kokken skreller en potet"],
    "Polish": ["osoba otwiera drzwi.", "Mężczyzna siedzi na kanapie i czyta książkę."],
    "Czech": ["Muž sedí na pohovce a čte knihu."],
    "Turkish": ["Bir adam kanepede oturuyor ve kitap okuyor."],
    "Finnish": ["Mies istuu sohvalla ja lukee kirjaa."],
    "Hungarian": ["egy ember kinyitja az ajtót."],
    "Romanian": ["Un bărbat stă pe canapea și citește o carte."],
    "Indonesian": ["Seorang pria duduk di sofa dan membaca buku."],
    "Vietnamese": ["một người mở cửa."],
    "Tagalog": ["binubuksan ng tao ang pinto."],
    "Swahili": ["mtu anafungua mlango."],
}
ENGLISH = [
    "person laughs.",
    "cheerleading",
    "t",
    "person opend the door,sneezed.",
    "PERSON OPENS THE DOOR.",
    "peolpe are running wearing stilts in an avenue.",
    "litle kid is riding a bicycle.",
    "BLM protestor chanting there slogans",
    "person fixing pantry door.",
    '"Salerno Dal 14 Luglio Al 4 Agosto La Tradizione Continua" animates on screen.',
    "a persno is laughing.",
    "American girl havinfg desi breakfast poori terkari in Delhi",
    "Vlogger tours the Siwa Oasis.",
    "A man in a pub dices a die.",
    "Justine Bieber giving TV interview",
]


@pytest.mark.parametrize("sentence", [sentence for several in OTHERS.values() for sentence in several])
def test_another_language_is_detected(sentence: str) -> None:
    assert foreign(sentence)
    assert foreign(f'"{sentence}"')
    assert foreign(sentence.upper())


def test_the_language_is_named_if_possible() -> None:
    for language in ("German", "French", "Dutch", "Portuguese", "Swedish", "Polish", "Turkish"):
        assert foreign(OTHERS[language][-1]) == language
    assert foreign("mtu anafungua mlango.") == "another language"


@pytest.mark.parametrize("sentence", ENGLISH)
def test_english_passes_with_misspellings(sentence: str) -> None:
    assert foreign(sentence) == ""


def real_queries(data: Path) -> Iterator[str]:
    for path in sorted([*data.glob("*-cg/*.json"), *data.glob("charades-sta/*.jsonl"), *data.glob("qvh*/*.jsonl")]):
        yield from (str(row.query) for row in read_rows(path, "train"))


def test_no_real_query_is_taken_for_another_language(shared: Path) -> None:
    queries = list(real_queries(shared / "data"))
    assert len(queries) > 110_000
    assert [query for query in queries if foreign(query)] == []


def write(folder: Path) -> Dataset:
    rows = [("a", "a person opens the door."), ("b", "der Koch schält eine Kartoffel"), ("c", "mtu anafungua mlango.")]
    told = {"vid": "v", "duration": 9, "relevant_windows": [[1, 2]]}
    lines = [{"qid": qid, "query": query, **told} for qid, query in rows]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Dataset(name="own", folder=str(folder))


def test_queries_in_other_languages_are_rejected_unless_all_are_wanted(tmp_path: Path) -> None:
    dataset = write(tmp_path)
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


def test_the_default_does_not_enter_the_key(tmp_path: Path) -> None:
    assert "english" not in Annotations(write(tmp_path)).determines()
