"""Checkpoints of Moment-DETR, QD-DETR and SHINE that others have trained: by name, as a file, or from the hub.

`PUBLISHED` lists those with a permanent address. They read CLIP's features of clips of two seconds, as their authors'
`run_on_video` computes them. Checkpoints that read other features are rejected; the error names the widths.
"""

import hashlib
import os
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn

from penumbra.artifacts.errors import what_there_is
from penumbra.artifacts.locations import runs_folder
from penumbra.models.checkpoints import CheckpointError, load_weights, read_official
from penumbra.tasks.grounding.families import system_of
from penumbra.tasks.grounding.runs import RunError
from penumbra.tasks.grounding.training.presets import Settings

TIMEOUT = 60  # seconds without an answer
SUFFIXES = ("*.safetensors", "*.ckpt", "*.pth", "*.pt")
CLIP_LENGTH, CLIPS = 2.0, 75  # QVHighlights: videos of 150 s


GITHUB, ZENODO = "https://raw.githubusercontent.com", "https://zenodo.org/records/13960580/files"
MOMENT_DETR = "jayleicn/moment_detr/2fd431e941164c566a2b960615b137d7bb35f6b5/run_on_video/moment_detr_ckpt"
QD_DETR = "wjun0830/QD-DETR/3e8e618ed20627579d35210eb6fea347fb6ca3ca/run_on_video/qd_detr_ckpt"
PUBLISHED = {  # the authors' own, then those that lighthouse (Nishimura et al., EMNLP 2024) trained
    "moment_detr-qvhighlights": f"{GITHUB}/{MOMENT_DETR}/model_best.ckpt",
    "qd_detr-qvhighlights": f"{GITHUB}/{QD_DETR}/model_best.ckpt",
    "moment_detr-lighthouse": f"{ZENODO}/clip_moment_detr_qvhighlight.ckpt",
    "qd_detr-lighthouse": f"{ZENODO}/clip_qd_detr_qvhighlight.ckpt",
}
# published SHA-256 digests; for files without one, the digest of the first download is stored
DIGESTS = {"qd_detr-lighthouse": "42798d352dde089a835cb4995eb9c8084a2e97337166abbbb09c12856aec2c55"}


def load_pretrained(source: str) -> tuple[nn.Module, Settings, tuple[int, int], str]:
    """Return model, settings, widths of features, and a note for users; raise `RunError` without an intact file."""
    file, note = _file_of(source)
    try:
        weights = read_official(file)
        settings = _settings_of(weights)
        system = system_of(settings)
        widths = system.widths(weights)
        with torch.device("meta"):  # allocates no memory, whatever sizes the file states
            model = system.build(*widths)
        load_weights(model, {name: value.float() for name, value in weights.items()})
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        is_named = isinstance(error, CheckpointError | KeyError)
        reason = str(error) if is_named else f"no model has its sizes ({type(error).__name__})"
        raise RunError(f"{file} is no checkpoint of Moment-DETR, QD-DETR or SHINE: {reason}") from None
    return model, settings, widths, note


def _settings_of(weights: Mapping[str, Tensor]) -> Settings:
    """Return the settings of a network with these weights, for videos of QVHighlights' length."""
    name = "qd_detr" if "global_token" in weights else "moment_detr"

    def layers(start: str) -> int:
        return len({key.removeprefix(start).partition(".")[0] for key in weights if key.startswith(start)})

    sizes = {
        "encoder_layers": layers("encoder."),
        "decoder_layers": layers("decoder.layers."),
        "projections": layers("video_projection.stages."),
        "queries": len(weights["anchors" if name == "qd_detr" else "queries"]),
        "feed_forward": len(weights["encoder.0.feed_forward.linear1.bias"]),
    }
    if "align_heads.query.bias" in weights:
        sizes["alignment"] = len(weights["align_heads.query.bias"])
    longest, hidden = len(weights["text_positions.table.weight"]), len(weights["text_positions.norm.weight"])
    return Settings.model_validate(
        {
            "model": {"name": name, "hidden": hidden, "ablation": sizes},
            "inputs": {"longest_video": CLIPS, "longest_text": longest},
            "ranking": {"longest": CLIPS * CLIP_LENGTH},
        }
    )


# -- files ------------------------------------------------------------------------------------------------------------


def _file_of(source: str) -> tuple[Path, str]:
    """Return the file of a name in `PUBLISHED`, a path or a name on the hub, and a note for users."""
    from huggingface_hub import snapshot_download

    path = Path(source).expanduser()
    if source in PUBLISHED:
        return _fetched(source, PUBLISHED[source], DIGESTS.get(source, ""))
    if path.is_file():
        return path, ""
    if source.count("/") != 1:
        raise RunError(
            f"no model {source!r}; {what_there_is(source, list(PUBLISHED))}; or a file, or OWNER/NAME of the hub"
        )
    try:
        folder = Path(snapshot_download(source, allow_patterns=list(SUFFIXES)))
    except (OSError, ValueError) as error:  # no answer, or no name of a repository
        raise RunError(f"{source} can't be fetched from the hub ({type(error).__name__}): give a file") from None
    found = sorted(file for suffix in SUFFIXES for file in folder.rglob(suffix))
    if len(found) != 1:
        names = ", ".join(str(file.relative_to(folder)) for file in found) or "none"
        raise RunError(f"{source} holds {len(found)} checkpoints ({names}): give one file")
    return found[0], f"{source}: from the hub, with no published SHA-256 to compare"


def _fetched(name: str, url: str, published: str) -> tuple[Path, str]:
    """Return the file, which is downloaded once; raise `RunError` unless its digest is the published or first one."""
    file = runs_folder() / "pretrained" / f"{name}.ckpt"
    known, is_new = file.with_suffix(".sha256"), not file.is_file()
    expected = published or (known.read_text() if known.is_file() else "")
    data = _download(name, url, file) if is_new else file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if expected and digest != expected:
        place, remedy = (url, "download it elsewhere") if is_new else (file, f"remove {file} and try again")
        if is_new and not published:
            remedy = f"it has changed since it was first fetched; to trust it, remove {known}"
        raise RunError(f"{name}: the SHA-256 of {place} is {digest}, not {expected}: {remedy}")
    if is_new:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            draft.write_bytes(data)
            read_official(draft)  # a proxy may have returned a page instead of the file
            known.write_text(digest)
            os.replace(draft, file)
        except CheckpointError:
            raise RunError(
                f"{name}: {url} returned no checkpoint: download it on another machine and copy it to {file}"
            ) from None
        finally:
            draft.unlink(missing_ok=True)
    unpublished = "" if published else "; its authors publish no digest, so the digest of this download is stored"
    return file, f"{name}: {url}, SHA-256 {digest[:12]}…{unpublished}"


class StaySecure(urllib.request.HTTPRedirectHandler):
    """Redirect handler that refuses to redirect from https to an address without encryption."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.type == "https" and not newurl.startswith("https://"):
            raise URLError(f"it redirects to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _download(name: str, url: str, file: Path) -> bytes:
    try:
        with urllib.request.build_opener(StaySecure).open(url, timeout=TIMEOUT) as answer:
            data: bytes = answer.read()
            return data
    except (URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise RunError(f"{name}: no answer from {url} ({reason}): download it elsewhere, copy it to {file}") from None
