"""`penumbra fetch`: download the public annotation files of Charades-CG and ActivityNet-CG, and check their digests.

They come from the Compositional-Temporal-Grounding repository (Li et al., CVPR 2022), at one commit.
"""

import hashlib
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException

from penumbra.artifacts.files import write_whole
from penumbra.artifacts.locations import data_folder
from penumbra.tasks.data.dataset import DatasetError

REPOSITORY = "https://raw.githubusercontent.com/YYJMJC/Compositional-Temporal-Grounding"
COMMIT = "2372337e9166b8e26b83ce936a8474c6ae127290"
TIMEOUT = 60  # seconds without an answer

FILES = {  # data set: folder of the repository, SHA-256 of each file
    "charades-cg": (
        "Charades-CG",
        {
            "train.json": "c66556077d8b6a1fd7ee91641f994cd1341c11adfa4fc078434c9fe7a4b93d8d",
            "test_trivial.json": "45eec9d3c46187235309344ab937a065b409cbdc3f3f9d926da6fd05302d822d",
            "novel_composition.json": "c92beda2c861bb0da356d94bba131d49e20a59d893d6e182bda1ee68a852514d",
            "novel_word.json": "f3ccd59c9f18e221028138faaf9bdddb5215e2550215ca62c8f24659168eb7f3",
        },
    ),
    "activitynet-cg": (
        "ActivityNet_CG",
        {
            "train.json": "31a6e0aa938f1f0d469bcb8d5492de7f9e9f77f74ba5676772db052057e26102",
            "test_trivial.json": "32c4d12ff1cdf35f4b48cf4d93bbb2c71beb802d693f57e0afc90347aaa937a4",
            "novel_composition.json": "d44d2c456974a4661bf14008d6316926e3b04d7ab9d48ed694861dc28602fe1b",
            "novel_word.json": "74e071738ece6d75ab1237c04a9a8cdebc939d3d65b015181596a84ae14f782c",
        },
    ),
}


def fetch(dataset: str, source: str = REPOSITORY) -> Iterator[str]:
    """Download the files that are missing or differ; yield a line about each, or raise `DatasetError`."""
    if dataset not in FILES:
        raise DatasetError(f"nothing to fetch for {dataset!r}; there is: {', '.join(FILES)} (`scenes` needs nothing)")
    remote_folder, digests = FILES[dataset]
    folder = data_folder() / dataset
    for name, digest in digests.items():
        file = folder / name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest:
            yield f"{file} exists"
            continue
        url = f"{source}/{COMMIT}/{remote_folder}/{name}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 (https, or a test's server)
                data: bytes = answer.read()
        except (OSError, HTTPException) as error:
            raise DatasetError(
                f"no answer from {url} ({getattr(error, 'reason', error)}): download it on a machine with a network, "
                f"copy it into {folder}, and set PENUMBRA_DATA={folder.parent}"
            ) from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise DatasetError(f"{url} has changed (its SHA-256 differs): nothing was written; try again later")
        write_whole(file, data)
        yield f"{file} fetched, {len(data):,} bytes"
