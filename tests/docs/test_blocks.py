"""Every block of commands and of Python in README.md and in docs/ runs, in order, on a small data set.

What is not run is listed in `NOT_RUN` with its reason, and what is only planned (`--dry-run`) in `PLANNED`.
"""

import csv
import hashlib
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.store import Store
from penumbra.flows.commands import app
from penumbra.tasks.data import fetch
from penumbra.tasks.data.dataset import SHIPPED
from penumbra.tasks.grounding.runs import all_runs
from tests import tiny_llama
from tests.films import film
from tests.protocol_server import ProtocolServer
from tests.rows import first_videos

pytestmark = pytest.mark.slow

NOT_RUN = {  # by the beginning of a line
    "make ": "continuous integration runs it as a whole",
    "penumbra serve": "a server: tests/flows/test_serve.py",
    'eval "$(penumbra serve': "a server: tests/flows/test_serve.py",
    "prefect ": "a server: tests/flows/test_serve.py",
    "for pool in ": "a server: tests/flows/test_serve.py",
    "penumbra demo-app": "a server: tests/flows/test_predict.py",
    "penumbra --install-completion": "it changes the files of the user's shell",
    "export ": "the test has its own keys, and a stand-in for the services",
    "pip ": "it needs a package index",
    "docker ": "docker",
    "PREFECT_API_URL=": "docker",
    "PENUMBRA_ENGINE=": "a cluster: tests/tasks/test_clusters.py",
    "RAY_AUTH_MODE=": "a cluster: tests/tasks/test_clusters.py",
    "accelerate ": "several GPUs",
    ".venv/bin/python -m bench.campaigns": "hours: tests/test_campaigns.py",
    "penumbra init charades-dev": "its file is made by hand of Charades-CG's train.json",
    "penumbra ablation llms charades-dev": "its data set is made by hand",
    'penumbra predict video.mp4 "a person opens the door." --model': "a network: tests/flows/test_pretrained.py",
    "python -m bench.official": "its files are those of a challenge: tests/golden",
    "penumbra run train-grounding charades-cg-vdi": "it needs CLIP's weights: tests/flows/test_grounding.py",
}
PLANNED = {  # by what a line contains
    "penumbra ablation": "trainings for hours: tests/flows/test_ablation.py",
    "engine=dask": "a cluster: tests/tasks/test_clusters.py",
    "videos.patches=true": "it needs CLIP's weights: tests/flows/test_extract_features.py",
}
BEFORE = {  # what a reader of a page has done, or has from elsewhere
    "docs/guides/quality.md": ("penumbra run build-negatives mine",),
    "docs/guides/bm-detr.md": tuple(
        f"penumbra run {flow} charades-sta" for flow in ("build-negatives", "extract-features")
    ),
    "docs/guides/predicting.md": ("penumbra run train-grounding scenes --param seed=1",),  # the newest reads CLIP
}
SAMPLES = (  # blocks with such a text are no commands
    ("README.md", "  level 1  "),
    ("docs/guides/data.md", '{"qid": 1,'),
    ("docs/guides/data.md", "build-negatives:\n"),
    ("docs/guides/artifacts.md", "penumbra: mine/negatives:"),
    ("docs/scale.md", "```"),  # tests/docs/test_scale.py
    ("docs/extending.md", ""),  # tests/docs/test_extending.py
)
READ = re.findall(r"- ([\w/-]+\.md)$", (PROJECT / "mkdocs.yml").read_text(), re.MULTILINE)  # in the order of the site
PAGES = ["README.md", *(f"docs/{name}" for name in READ if (PROJECT / "docs" / name).is_file())]
RUN = re.compile(r"\b([a-z_]+(?:\+shine)?)-ab12cd\b")  # a made-up name of a run
REVIEW = re.compile(r"mine-1a2b3c4d-(\w+)\.review\.jsonl")
SMALL = {
    "build-negatives": {"judging.resamples": 0},
    "extract-features": {"clip.encoder": "tiny-clip", "videos.clip_length": 5},
    "train-grounding": {"epochs": 1, "training.batch_size": 64},
    "full-pipeline": {"epochs": 1, "judging.resamples": 0, "features.videos.clip_length": 5},
}


def blocks(page: str) -> Iterator[str]:
    """Yield the blocks of a page, indented or fenced, without indentation."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    for block in re.findall(r"(?<=\n\n)(?s:```.*?\n```)|(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", text):
        yield re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip()


def with_names(line: str) -> str:
    """Return a line with names of what is here, in place of made-up ones."""
    for review in REVIEW.finditer(line):
        negatives = Store().newest("mine", "negatives")
        first = Store().table(negatives).to_pylist()[0]
        row = {name: first[name] for name in ("qid", "level", "query", "negative")}
        header = {"dataset": "mine", "stage": "negatives", "key": negatives.key, "reviewer": review[1]}
        rows = (header, {**row, "verdict": "reject", "time": "2026-01-01T00:00:00Z"})
        Path(review[0]).write_text("".join(f"{json.dumps(it)}\n" for it in rows))
    runs = {run.model: run.run for run in all_runs("charades-cg")} if RUN.search(line) else {}
    return RUN.sub(lambda run: runs[run[1]], line).replace("release.jsonl", "negatives.jsonl")


def penumbra(line: str) -> str:
    """Run a line of a shell in this process; return what is wrong with it, or ''."""
    line = with_names(line)
    words = shlex.split(line, comments=True)
    words += ["--dry-run"] * any(part in line for part in PLANNED)
    if words[0] != "penumbra":
        return f"{line}: add it to NOT_RUN with the reason"
    target = words[words.index(">") + 1] if ">" in words else None
    done = CliRunner().invoke(app, words[1 : words.index(">") if target else None], prog_name="penumbra")
    if target:
        Path(target).write_text(done.stdout, encoding="utf-8")
    return f"{line}\n{done.output[-2000:]}\n{done.exception}" if done.exit_code else ""


def faults(page: str) -> list[str]:
    """Run the blocks of a page; return what is wrong."""
    found, names = [penumbra(line) for line in BEFORE.get(page, ())], dict[str, Any]()
    for block in blocks(page):
        if any(page == where and text in block for where, text in SAMPLES):
            continue
        if block.startswith(("import ", "from ")):
            try:
                exec(compile(block, page, "exec"), names)
            except Exception as error:
                found.append(f"{block}\n{error!r}")
            continue
        lines = block.replace("\\\n", "").splitlines()
        found += [penumbra(line) for line in lines if line and not line.startswith(tuple(NOT_RUN))]
    return [f"{page}: {fault}" for fault in found if fault]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, prefect_server: None) -> Path:
    """Return the folder of a user with a table, its videos, and another video."""
    monkeypatch.setenv("PENUMBRA_DATA", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROJECT / "tests" / "data" / "cooking.csv", "rows.csv")
    with open("rows.csv", encoding="utf-8") as stream:
        vids = {row["video"] for row in csv.DictReader(stream)}
    own = tmp_path / "datasets" / "mine"
    (own / "videos").mkdir(parents=True)
    (own / "penumbra.yaml").write_text(json.dumps(SMALL))
    first = film(own / "videos" / "any.mp4", frames=130, rate=1, size=(32, 32))
    for vid in vids:
        shutil.copy(first, own / "videos" / f"{vid}.mp4")
    first.rename("video.mp4")
    return tmp_path


@pytest.mark.timeout(600)
def test_the_readme_works_as_it_is_written(here: Path) -> None:
    assert faults("README.md") == []
    assert len(Store().find("mine", "predictions")) == 2


def public(folder: Path, monkeypatch: pytest.MonkeyPatch, server: ProtocolServer) -> None:
    """Make the data sets that the guides name of the first scenes."""
    counts = {"train": 25, "test_trivial": 4, "novel_composition": 4, "novel_word": 4}
    llama = {"llama": {"model": str(tiny_llama.build(folder / "llama"))}}
    settings = {**SMALL, "build-negatives": {**SMALL["build-negatives"], "filling": llama}}
    for name in ("charades-cg", "charades-sta", "scenes"):
        of = first_videos(folder / "datasets" / name, **counts)
        (of / "videos").symlink_to(SHIPPED / "videos")
        (of / "penumbra.yaml").write_text(json.dumps(settings))
    for deployment in ("charades-sta-bm_detr", "scenes-bm_detr", "charades-cg-mmn", "charades-cg-vdi"):
        (folder / "datasets" / deployment).mkdir()
        shutil.copy(folder / "datasets" / "scenes" / "penumbra.yaml", folder / "datasets" / deployment)
    [vid, *_] = json.loads((folder / "datasets" / "charades-sta" / "test_trivial.json").read_text())
    (folder / "charades_ood_neg_test.jsonl").write_text(json.dumps({"vid": vid, "query": "an eagle hunts a hare."}))
    files = (folder / "datasets" / "charades-cg").glob("*.json")
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    monkeypatch.setitem(fetch.FILES, "charades-cg", ("", digests))
    monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
    monkeypatch.setenv("GEMINI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("GEMINI_API_KEY", "AIza-test")


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_guides_work_as_they_are_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("slowfast", "clip"):  # features of others
        (here / "datasets" / "mine" / name).mkdir()
        for video in (here / "datasets" / "mine" / "videos").iterdir():
            np.savez(here / "datasets" / "mine" / name / f"{video.stem}.npz", features=np.ones((65, 4), np.float32))
    with ProtocolServer() as server:
        public(here, monkeypatch, server)
        found = [fault for page in PAGES[1:] for fault in faults(page)]
        assert not found, "\n".join(found)
