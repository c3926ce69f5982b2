"""Add the generated reference and the pages of the repository's root to the site."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from reference import PAGES

PROJECT = Path(__file__).resolve().parents[1]
PAPERS = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the pages of the repository's root."""
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    for name, paper in PAPERS.items():
        text = (PROJECT / paper).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files
