"""Add the generated reference and the files of the repository's root to the site; README.md is its first page."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from reference import PAGES

PROJECT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINKED = ("LICENSE", "CITATION.cff", "models/README.md", "examples/*.ipynb")  # from README.md


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the root's pages, and the files that README.md links to."""
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    for name in ROOT_PAGES:
        text = (PROJECT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    for path in [path for pattern in LINKED for path in PROJECT.glob(pattern)]:
        name = str(path.relative_to(PROJECT))
        files.append(File.generated(config, name, content=path.read_bytes(), inclusion=InclusionLevel.NOT_IN_NAV))
    return files
