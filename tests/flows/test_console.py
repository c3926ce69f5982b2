"""The bars of a run in a terminal."""

from io import StringIO

from penumbra.flows.console import SafeConsole, bars_on
from penumbra.tasks.progress import bars_shown, counting, progress_scope


def test_a_terminal_shows_what_is_counted_by_stage_and_unit() -> None:
    screen, bars = StringIO(), bars_on(SafeConsole(width=100, force_terminal=True, color_system=None))
    bars.live.console.file = screen
    with bars_shown(bars), progress_scope("tags\x1b[31m"):
        tick = counting("texts", 20)
        for _ in range(20):
            bars.refresh()
            tick(1)
        assert [task.completed for task in bars.tasks] == [20]
    assert bars.tasks == [], "a stage's bars go with it"
    assert "1/20 texts" in screen.getvalue()
    assert "tags\N{REPLACEMENT CHARACTER}[31m" in screen.getvalue()
