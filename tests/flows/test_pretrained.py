"""Checkpoints of others, from a stand-in for their authors' sites, over real HTTP, and from the hub's cache."""

import shutil
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from penumbra.artifacts.locations import PROJECT
from penumbra.models.checkpoints import our_name
from penumbra.models.detr import QDDETR
from penumbra.tasks.features.clip import FOLDER, Clip
from penumbra.tasks.grounding import pretrained
from penumbra.tasks.grounding.prediction import Grounder
from penumbra.tasks.grounding.runs import RunError
from tests.films import film
from tests.golden.reading import model_of
from tests.terminal import python

pytestmark = pytest.mark.slow

TINY = Clip(encoder="tiny-clip")
VIDEO, TEXT = 192, 128  # its widths
SENTENCES = ["a person opens the door.", "a person sits down."]
BOTH = ("weight", "bias")
ENCODER = ("self_attn.in_proj_", "self_attn.out_proj.", "linear1.", "linear2.", "norm1.", "norm2.")
DAB = [f"{kind}_{part}_proj." for kind in ("sa", "ca") for part in ("qcontent", "qpos", "kcontent", "kpos", "v")]


def official_names(model: str) -> Iterator[str]:
    is_qd = model == "qd_detr"
    cross = [*DAB, "ca_qpos_sine_proj.", "cross_attn.out_proj.", *ENCODER[1:]]
    decoder = cross if is_qd else [*ENCODER, "multihead_attn.in_proj_", "multihead_attn.out_proj."]
    for i in range(2):
        for part, names in (("encoder", ENCODER), ("t2v_encoder", ENCODER), ("decoder", [*decoder, "norm3."])):
            yield from (f"transformer.{part}.layers.{i}.{name}{end}" for name in names for end in BOTH)
            yield f"transformer.{part}.layers.{i}.activation.weight"
        for name in ("txt", "vid"):
            yield from (f"input_{name}_proj.{i}.{part}.{end}" for part in ("LayerNorm", "net.1") for end in BOTH)
    for head in ("query_scale", "ref_point_head", "bbox_embed", "ref_anchor_head"):
        yield from (f"transformer.decoder.{head}.layers.{i}.{end}" for i in range(3) for end in BOTH)
    yield from (f"span_embed.layers.{i}.{end}" for i in range(3) for end in BOTH)
    heads = ("class_embed", "transformer.decoder.norm", "txt_position_embed.LayerNorm")
    saliency = ("saliency_proj1", "saliency_proj2") if is_qd else ("saliency_proj",)
    yield from (f"{name}.{end}" for name in (*heads, *saliency) for end in BOTH)
    yield from ("txt_position_embed.position_embeddings.weight", "query_embed.weight")
    yield from ("global_rep_token", "global_rep_pos")


def official_weights(model: str = "qd_detr", video: int = VIDEO) -> dict[str, Tensor]:
    """Return fresh weights of a model that reads features of these widths, under the published names."""
    torch.manual_seed(0)
    sizes = {"video_dim": video + 2, "text_dim": TEXT, "hidden": 16, "feed_forward": 24, "queries": 5}
    ours = model_of(model, sizes).state_dict()
    ours |= {"queries": ours["anchors"]} if "anchors" in ours else {}
    weights = {name: ours[our_name(name)] for name in official_names(model) if our_name(name) in ours}
    assert {our_name(name) for name in weights} == ours.keys() - {"anchors"}
    return weights


@pytest.fixture
def site(here: Path) -> Iterator[str]:
    """Serve the user's folder; each request is a line of standard error."""
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's folder with a video."""
    monkeypatch.setenv("PENUMBRA_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    film(tmp_path / "video.mp4", frames=200, rate=1, size=(32, 32))
    return tmp_path


def checkpoint(file: Path, weights: dict[str, Tensor]) -> Path:
    """Write a checkpoint as it is published, with options."""
    torch.save({"model": weights, "epoch": 3, "opt": {"nheads": 8}}, file)
    return file


@pytest.mark.parametrize("name", ["moment_detr", "qd_detr"])
def test_a_published_checkpoint_grounds_a_video(
    here: Path, site: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    data = checkpoint(here / "a.ckpt", official_weights(name)).read_bytes()
    monkeypatch.setitem(pretrained.PUBLISHED, name, f"{site}/a.ckpt")
    for _ in range(2):
        grounder = Grounder.pretrained(name, TINY)
    assert capfd.readouterr().err.count("GET /a.ckpt") == 1
    watched = grounder.watch("video.mp4")
    assert "no digest" in watched.notes[0]
    assert "the first 150 s" in watched.notes[1]
    for found in grounder.ask(watched, SENTENCES):
        assert found.windows
        assert (found.clip_length, len(found.saliency), found.duration) == (2.0, 75, 150.0)
    for official, value in official_weights(name).items():
        ours = our_name(official)
        ours = "anchors" if ours == "queries" and name == "qd_detr" else ours
        assert torch.equal(grounder.model.state_dict()[ours].cpu(), value)
    file = here / "runs" / "pretrained" / f"{name}.ckpt"
    file.write_bytes(data[:-1] + b"x")
    with pytest.raises(RunError, match=r"the SHA-256 of .* remove .* and try again"):
        Grounder.pretrained(name, TINY)


def test_a_file_of_another_digest_is_not_kept(here: Path, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretrained.PUBLISHED, "mine", f"{site}/video.mp4")
    monkeypatch.setitem(pretrained.DIGESTS, "mine", "0" * 64)
    with pytest.raises(RunError, match="not 0000"):
        Grounder.pretrained("mine", TINY)
    assert not (here / "runs").exists()


def test_a_site_that_does_not_answer_has_a_remedy(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretrained.PUBLISHED, "mine", "http://127.0.0.1:9/a")
    with pytest.raises(RunError, match=r"no answer from .* copy it to .*mine\.ckpt"):
        Grounder.pretrained("mine", TINY)


def test_what_a_proxy_answers_is_not_remembered(here: Path, site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "a.ckpt").write_text("<html>log in</html>")
    monkeypatch.setitem(pretrained.PUBLISHED, "mine", f"{site}/a.ckpt")
    with pytest.raises(RunError, match=r"returned no checkpoint: .* copy it to .*mine\.ckpt"):
        Grounder.pretrained("mine", TINY)
    assert not list((here / "runs" / "pretrained").iterdir())
    checkpoint(here / "a.ckpt", official_weights())
    Grounder.pretrained("mine", TINY)
    (here / "runs" / "pretrained" / "mine.ckpt").unlink()
    checkpoint(here / "a.ckpt", official_weights(video=VIDEO + 1))
    with pytest.raises(RunError, match=r"changed since it was first fetched; to trust it, remove .*mine\.sha256"):
        Grounder.pretrained("mine", TINY)


def test_predict_takes_checkpoint_and_clip_from_the_hub(here: Path) -> None:
    """As the hub's own client has left them in its cache."""
    (here / "grounder").mkdir()
    save_file(official_weights(), here / "grounder" / "model.safetensors")
    commit = "0" * 40
    for name, folder in (("someone--grounder", here / "grounder"), ("openai--clip-vit-base-patch32", FOLDER)):
        cached = here / "hub" / f"models--{name}"
        shutil.copytree(folder, cached / "snapshots" / commit)
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(commit)
    words = ("predict", "video.mp4", *SENTENCES, "--model", "someone/grounder")
    program = "from penumbra.flows.commands import main\nmain()"
    done = python(program, *words, HF_HUB_CACHE=str(here / "hub"), PYTHONPATH=str(PROJECT))
    assert all(sentence in done.stdout for sentence in SENTENCES)
    assert "someone/grounder: from the hub" in done.stderr


def test_features_that_are_not_computed_here_are_named(here: Path) -> None:
    file = checkpoint(here / "slowfast.ckpt", official_weights(video=2304 + 512))
    with pytest.raises(RunError, match=r"widths 2816 \(video\) .* SlowFast .* training\.start_from"):
        Grounder.pretrained(str(file), TINY)


def test_what_is_no_checkpoint_is_one_line(here: Path) -> None:
    torch.save({"model": {"featpool.conv.weight": torch.ones(2, 2, 1)}}, here / "mmn.ckpt")
    for name, reason in (
        ("mmn.ckpt", "no checkpoint of Moment-DETR, QD-DETR or SHINE"),
        ("video.mp4", "can't be read as weights only"),
        ("qd_detr-qvhighlight", "did you mean qd_detr-qvhighlights"),
        ("nobody/nothing", "can't be fetched from the hub"),
    ):
        with pytest.raises(RunError, match=reason):
            Grounder.pretrained(name, TINY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("txt_position_embed.LayerNorm.weight", torch.zeros(60_000)),
        ("txt_position_embed.LayerNorm.weight", torch.zeros(1).expand(10**9)),
        ("txt_position_embed.LayerNorm.weight", torch.zeros(15)),
        ("txt_position_embed.LayerNorm.weight", torch.tensor(1.0)),
        ("transformer.encoder.layers.0.linear1.bias", torch.zeros(1).expand(10**9)),
        ("query_embed.weight", torch.zeros(10**9, 2, device="meta")),
    ],
)
def test_a_small_checkpoint_of_a_large_model_is_refused_before_it_is_made(
    here: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: Tensor
) -> None:
    checkpoint(here / "a.ckpt", official_weights() | {name: value})
    made, build = list[str](), QDDETR.__init__

    def note(model: QDDETR, *sizes: Any) -> None:
        made.append(torch.empty(0).device.type)
        build(model, *sizes)

    monkeypatch.setattr(QDDETR, "__init__", note)
    with pytest.raises(RunError, match="no checkpoint of Moment-DETR, QD-DETR or SHINE") as error:
        Grounder.pretrained(str(here / "a.ckpt"), TINY)
    assert "\n" not in str(error.value)
    assert set(made) <= {"meta"}


def test_a_compressed_checkpoint_is_not_unpacked(here: Path) -> None:
    checkpoint(here / "whole.ckpt", official_weights())
    with zipfile.ZipFile(here / "whole.ckpt") as whole, zipfile.ZipFile(here / "a.ckpt", "w", 8) as packed:
        for entry in whole.namelist():
            packed.writestr(entry, whole.read(entry))
    with pytest.raises(RunError, match="it is compressed"):
        Grounder.pretrained(str(here / "a.ckpt"), TINY)


def test_a_download_stays_encrypted() -> None:
    asked = urllib.request.Request("https://a.example/x")
    for address in "http://a.example/x", "ftp://a.example/x":
        with pytest.raises(URLError, match="not encrypted"):
            pretrained.StaySecure().redirect_request(asked, None, 302, "", {}, address)
    assert pretrained.StaySecure().redirect_request(asked, None, 302, "", {}, "https://b.example/x")
