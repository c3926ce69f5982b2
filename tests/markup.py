"""The markup of a markdown page, as a reader's parser finds it; and the pages that flows have published."""

from collections import Counter

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

HOSTILE = "<script>alert(1)</script> it's | ![x](http://a) `y` *z* a_b_ R1@0.5 www.a.bc &lt; \\\x00\ud800"
HARMLESS = {"text", "code_inline", "strong_open", "strong_close"}


def kinds(page: str) -> Counter[str]:
    """Count each kind of markup within the blocks of a page; blocks of HTML are `html_block`."""
    parser = MarkdownIt("commonmark").enable("table")
    parser.validateLink = lambda _: True  # type: ignore[method-assign]  # of pictures that are in the page
    tokens = parser.parse(page)
    found = Counter(child.type for token in tokens for child in token.children or ())
    return found + Counter(token.type for token in tokens if token.type == "html_block")


def published(*keys: str) -> dict[str, str]:
    """Return the newest page or table of each key in the Prefect UI."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=list(keys)))
        found = client.read_artifacts(artifact_filter=wanted)
    return {str(it.key): str(it.data) for it in sorted(found, key=lambda it: str(it.created))}


def columns(page: str) -> set[tuple[int, ...]]:
    """Return the numbers of columns of each table; a table whose lines differ has several."""
    tree = SyntaxTreeNode(MarkdownIt("commonmark").enable("table").parse(page))
    tables = [node for node in tree.walk() if node.type == "table"]
    return {tuple(sorted({len(row.children) for row in it.walk() if row.type == "tr"})) for it in tables}
