"""What messages tell people to type works: each is provoked, and what it names is typed."""

import re
from pathlib import Path

import pytest

from penumbra.artifacts.store import Store
from tests import terminal
from tests.docs.test_blocks import here, penumbra  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TINY, NEGATIVES = "--param clip.encoder=tiny-clip", "penumbra run build-negatives"  # no hub is reached here
EXTRACT, PIPELINE = "penumbra run extract-features mine", "penumbra run full-pipeline mine"
EVALUATE = "penumbra run evaluate-grounding mine --param choice.run="
# what is typed, what its message advises, and what is added so that the advice takes seconds and no network
BEFORE_ANYTHING = (
    ("penumbra artifacts ls", f"{NEGATIVES} scenes", "--dry-run"),
    ("penumbra runs ls", PIPELINE, f"{TINY} --dry-run"),
    ("penumbra check charades-cg", "penumbra fetch charades-cg", "--help"),
    ("penumbra artifacts show mine/negatives", f"{NEGATIVES} mine", "--dry-run"),
    ("penumbra export mine", f"{NEGATIVES} mine", "--dry-run"),
    ("penumbra compare mine", PIPELINE, f"{TINY} --dry-run"),
    ("penumbra predict video.mp4 x", PIPELINE, f"{TINY} --dry-run"),
    ("penumbra run train-grounding mine", EXTRACT, f"{TINY} --dry-run"),
    ("penumbra run evaluate-grounding mine", PIPELINE, f"{TINY} --dry-run"),
    (f"{NEGATIVES} mine --param masking.ratio=[0.1]", f"{NEGATIVES} --help masking", ""),
    (f"{NEGATIVES} mine --param tagging=x", f"{NEGATIVES} --help tagging", ""),
    (f"{NEGATIVES} mine --param filling.candidates=many", f"{NEGATIVES} --help filling", ""),
    (f"{NEGATIVES} --help maskin", f"{NEGATIVES} --help", ""),
)
OPTIONS = (  # a line, an option that its message names, and the line that has it
    (f"{EXTRACT} --param encoder=x", "--param clip.encoder=", f"{EXTRACT} {TINY} --dry-run"),
    (f"{EXTRACT} --param clip.encoder=openai/none", TINY, f"{EXTRACT} {TINY} --dry-run"),
    ("penumbra init mine --from other.csv", "--force", "penumbra init mine --from other.csv --force"),
)
TOOLS = (
    (f"{NEGATIVES} mine --param tagging.spacy_model=en_none", "python -m spacy download en_none"),
    (f"{NEGATIVES} mine --param encoding.sentence_model=none/none", "pip install 'penumbra[offline]'"),
    (f"{NEGATIVES} mine --param filling.llama.model=none/none --param providers=[llama]", "hf download none/none"),
)
AFTER_TRAINING = (
    ("penumbra artifacts rm mine/negatives", "penumbra artifacts pin mine/negatives --as release --remove", ""),
    ("penumbra artifacts show mine/tags", f"{NEGATIVES} mine", "--dry-run"),  # which is damaged
)


def message(line: str) -> str:
    """Type a line; return what it prints, with its message."""
    done = terminal.penumbra(*(word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)[1:]))
    return f"{done.output}\n{done.exception or ''}"


def check(line: str, advice: str, typed: str) -> None:
    assert advice in message(line), line
    assert penumbra(typed) == ""


def test_remedies_work(here: Path) -> None:  # noqa: F811
    assert penumbra("penumbra init mine --from rows.csv") == ""
    (here / "other.csv").write_text("\n".join((here / "rows.csv").read_text().splitlines()[:80]) + "\n")
    for line, advice, more in BEFORE_ANYTHING:
        check(line, advice, f"{advice} {more}")
    for line, advice, typed in OPTIONS:
        check(line, advice, typed)
    for line, tool in TOOLS:
        assert tool in message(line), line
    for line in (f"{NEGATIVES} mine", EXTRACT, "penumbra run train-grounding mine"):
        assert penumbra(line) == ""
    again = "penumbra run train-grounding mine --param training.seed=1"
    check("penumbra compare mine", again, again)
    [run] = re.findall(f"{re.escape(EVALUATE)}[\\w+-]+", message("penumbra compare mine"))
    assert penumbra(f"{run} --dry-run") == ""
    assert penumbra("penumbra artifacts pin mine/negatives") == ""
    [part] = Path(Store().newest("mine", "tags").path).glob("part-*.parquet")
    part.write_bytes(b"damaged")
    for line, advice, more in AFTER_TRAINING:
        check(line, advice, f"{advice} {more}")
