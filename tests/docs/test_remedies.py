"""What messages tell people to type works: each is provoked, and the commands and options that it names are run."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.store import Store
from tests import terminal
from tests.docs.test_blocks import here, penumbra  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMAND = re.compile(r"(?<!install )\bpenumbra (?:--help|[a-z]+(?:-[a-z]+)*(?: [^`;:,()\n]+)?)")
AFTER = re.compile(r" (?:makes|repairs|takes|names|unpins|lists|says|shows|on a machine|needs)\b.*")
OPTION = re.compile(r"(?<=[ `])--[a-z-]+(?: '?[\w.]+=[^\s,;]+)?")
TOOL = re.compile(r"`((?:hf|python|pip) [^`]+)`|(pip install '?penumbra\[\w+\]'?)")
COSTLY = {"run": "--dry-run", "ablation": "--dry-run", "fetch": "--help", "serve": "--help", "review": "--help"}
EXTRAS = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
BEFORE_ANYTHING = (
    ("penumbra artifacts ls", "penumbra run build-negatives scenes"),
    ("penumbra runs ls", "penumbra run full-pipeline mine"),
    ("penumbra check charades-cg", "penumbra fetch charades-cg"),
    ("penumbra artifacts show mine/negatives", "penumbra run build-negatives mine"),
    ("penumbra export mine", "penumbra run build-negatives mine"),
    ("penumbra compare mine", "penumbra run full-pipeline mine"),
    ("penumbra predict video.mp4 x", "penumbra run full-pipeline mine"),
    ("penumbra run train-grounding mine", "penumbra run extract-features mine"),
    ("penumbra run evaluate-grounding mine", "penumbra run full-pipeline mine"),
    ("penumbra run build-negatives mine --param masking.ratio=[0.1]", "penumbra run build-negatives --help"),
    ("penumbra run build-negatives mine --param tagging=x", "penumbra run build-negatives --help tagging"),
    ("penumbra run build-negatives mine --param filling.candidates=many", "penumbra run build-negatives --help"),
    ("penumbra run build-negatives --help maskin", "penumbra run build-negatives --help"),
    ("penumbra run extract-features mine --param encoder=x", "--param clip.encoder="),
    ("penumbra run extract-features mine --param clip.encoder=openai/none", "--param clip.encoder=tiny-clip"),
    ("penumbra run build-negatives mine --param tagging.spacy_model=en_none", "python -m spacy"),
    ("penumbra run build-negatives mine --param encoding.sentence_model=none/none", "pip install"),
    ("penumbra run build-negatives mine --param filling.llama.model=none/none --param providers=[llama]", "hf "),
    ("penumbra init mine --from other.csv", "--force"),
)
AFTER_TRAINING = (
    ("penumbra compare mine", "penumbra run evaluate-grounding mine --param choice.run="),
    ("penumbra artifacts rm mine/negatives", "penumbra artifacts pin mine/negatives --as release --remove"),
    ("penumbra artifacts show mine/tags", "penumbra run build-negatives mine"),  # which is damaged
)


def said(line: str) -> str:
    """Type a line; return what it prints, with its message."""
    done = terminal.penumbra(*(word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)[1:]))
    return f"{done.output}\n{done.exception or ''}"


def works(line: str, remedy: str) -> str:
    """Follow what a message on a line advises; return what is wrong, or ''."""
    if remedy.startswith("penumbra"):
        words = remedy.replace("…", "x").split()
        cost = COSTLY.get(words[1], "") if "--help" not in words and "--dry-run" not in words else ""
        if words[2:4] in (["full-pipeline", "mine"], ["extract-features", "mine"]):
            words += ["--param", "clip.encoder=tiny-clip"]  # no hub is reached here
        return penumbra(f"{' '.join(words)} {cost}")
    if remedy.startswith("--"):
        left = re.sub(rf" --param {remedy.partition('=')[0].rpartition('.')[2]}=\S+", "", line)  # was meant
        remedy = remedy.replace("…", "tiny-clip")
        return penumbra(f"{left} {remedy}{' --dry-run' if line.split()[1] == 'run' else ''}")
    if extra := re.search(r"penumbra\[(\w+)\]", remedy):
        return "" if extra[1] in EXTRAS else f"no extra {extra[1]}"
    program = ["huggingface_hub.cli.hf" if remedy.startswith("hf ") else "spacy", "download", "--help"]
    done = subprocess.run([sys.executable, "-m", *program], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def remedies(text: str) -> list[str]:
    """Return the commands, the options and the tools that a message names."""
    commands = [AFTER.sub("", found).strip().rstrip(".") for found in COMMAND.findall(text)]
    left = COMMAND.sub("", text)
    tools = [one or other for one, other in TOOL.findall(text)]
    return [*commands, *OPTION.findall(TOOL.sub("", left)), *tools]


def check(line: str, expected: str) -> list[str]:
    """Return what is wrong with a line's remedies; `expected` begins one of them."""
    text = said(line)
    found = [it for it in remedies(text) if it.startswith(expected)]
    if not found:
        return [f"{line}: no remedy {expected!r} in\n{text}"]
    return [f"{line}: {it}: {fault}" for it in found if (fault := works(line, it))]


def test_remedies_work(here: Path) -> None:  # noqa: F811
    assert penumbra("penumbra init mine --from rows.csv") == ""
    (here / "other.csv").write_text("\n".join((here / "rows.csv").read_text().splitlines()[:80]) + "\n")
    found = [fault for line, remedy in BEFORE_ANYTHING for fault in check(line, remedy)]
    for line in ("build-negatives mine", "extract-features mine", "train-grounding mine"):
        assert penumbra(f"penumbra run {line}") == ""
    found += check("penumbra compare mine", "penumbra run train-grounding mine --param training.seed=1")
    assert penumbra("penumbra run train-grounding mine --param training.seed=1") == ""
    assert penumbra("penumbra artifacts pin mine/negatives") == ""
    [part] = Path(Store().newest("mine", "tags").path).glob("part-*.parquet")
    part.write_bytes(b"damaged")
    found += [fault for line, remedy in AFTER_TRAINING for fault in check(line, remedy)]
    assert found == [], "\n".join(found)
