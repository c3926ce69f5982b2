"""Write the sentences of the quality report's second judge: WordNet's examples, from Debian's `wordnet-base`.

apt-get download wordnet-base && dpkg-deb -x wordnet-base_*.deb build/wordnet
python -m workshop.sentences build/wordnet/usr/share/wordnet tasks/negatives/quality/sentences.txt.gz
"""

import gzip
import re
from pathlib import Path

import typer

FILES = ("noun", "verb", "adj", "adv")
LEAST = 3  # words


def sentences(folder: Path) -> list[str]:
    """Return the examples in the glosses of all synsets, each once, in the order of the files."""
    lines = [line for name in FILES for line in (folder / f"data.{name}").read_text(encoding="latin-1").splitlines()]
    glosses = [line.partition(" | ")[2] for line in lines if not line.startswith("  ")]
    found = [" ".join(text.split()) for gloss in glosses for text in re.findall(r'"([^"]+)"', gloss)]
    return [text for text in dict.fromkeys(found) if len(text.split()) >= LEAST]


def main(folder: Path, file: Path) -> None:
    text = "".join(f"{text}\n" for text in sentences(folder))
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    typer.run(main)
