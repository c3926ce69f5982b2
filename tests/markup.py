"""The markup of a markdown page, as a reader's parser finds it; and the pages that flows have published."""

from collections import Counter

from markdown_it import MarkdownIt

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
    parser = MarkdownIt("commonmark").enable("table")
    lines: list[int] = []
    tables: set[tuple[int, ...]] = set()
    for token in parser.parse(page):
        if token.type == "table_open":
            lines = []
        elif token.type == "tr_open":
            lines.append(0)
        elif token.type in ("td_open", "th_open"):
            lines[-1] += 1
        elif token.type == "table_close":
            tables.add(tuple(sorted(set(lines))))
    return tables
