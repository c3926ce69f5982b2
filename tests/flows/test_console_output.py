"""The live display of a run in a real terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from prefect.settings import PREFECT_API_URL

PROGRAM = """
import os, sys, time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from prefect import flow

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import Part
from penumbra.artifacts.schemas import table_of
from penumbra.flows.console_output import live_display
from penumbra.tasks.engines import Engine, use_engine
from penumbra.tasks.progress import prepare_log
from penumbra.tasks.progress import followed
from penumbra.tasks.stage import Stage, logger, run


@dataclass(frozen=True)
class Toy(Stage):
    name = "rejected"
    version = 1
    unit = "toy"
    dataset = "toy"
    by_workers = property(lambda self: self.several)

    label = property(lambda self: self.title)
    title: str = "toys"
    several: bool = False
    breaks: bool = False

    def determines(self):
        return {"title": self.title}

    @property
    def pieces(self):
        return range(3)

    def part(self, piece):
        for _ in followed(range(20), "bricks", 20):
            time.sleep(0.05)
        if self.breaks:
            raise PenumbraError("no brick is left")
        logger().warning("part %d wobbles", piece)
        return Part(table_of("rejected", [{"qid": "q", "stage": "toy", "reason": "no", "value": ""}]), 1, 1)


@flow(flow_run_name="toys")
def toys():
    run(Toy("first"))
    with use_engine(Engine.processes):
        run(Toy("several", several=True))
    run(Toy("first"))
    logger().info("a line of the flow's own")
    run(Toy("broken", breaks=True))


if __name__ == "__main__":
    prepare_log()
    try:
        with live_display():
            toys()
    except PenumbraError as error:
        print(f"penumbra: {error}", file=sys.stderr)
    print("the end")
"""


def shown(folder: Path) -> str:
    """All that a terminal of 100 columns gets, without colours; each redrawing in lines of its own."""
    program = folder / "toys.py"
    program.write_text(PROGRAM)
    settings = {"PREFECT_API_URL": str(PREFECT_API_URL.value()), "PREFECT_LOGGING_LEVEL": "INFO", "DO_NOT_TRACK": "1"}
    environment = {**os.environ, **settings, "PENUMBRA_ARTIFACTS": str(folder / "a"), "TERM": "xterm-256color"}
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen([sys.executable, str(program)], env=environment, stdin=end, stdout=end, stderr=end)
    os.close(end)
    drawn = b""
    try:
        while more := os.read(terminal, 1 << 16):
            drawn += more
    except OSError:  # how a terminal says that nobody writes any more
        pass
    assert process.wait(60) == 0, drawn.decode()
    os.close(terminal)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn.decode()).replace("\r", "\n")


def test_a_terminal_shows_stages_their_parts_and_what_is_counted_within(tmp_path: Path, prefect_server: None) -> None:
    drawn = shown(tmp_path)
    lines = [" ".join(line.split()) for line in drawn.splitlines()]
    finished = [re.sub(r"\d+\.\d s, .*", "", line) for line in lines if "0 rejected" in line]
    assert finished[:2] == [f"{name}: 3 toys in, 3 out, 0 rejected; " for name in ("first", "several")], drawn
    assert finished[2].startswith("first: 3 toys in, 3 out, 0 rejected; found done, ")
    assert any(re.search(r"first [━╸╺]+ [12]/3 parts", line) for line in lines), drawn
    assert any(re.search(r"first [━╸╺]+ ([1-9]|1\d)/20 bricks \d+:\d\d", line) for line in lines), drawn
    assert any(re.search(r"several [━╸╺]+ [12]/3 parts", line) for line in lines), drawn
    assert "3 parts by" in drawn
    assert "part 1 wobbles" in lines, drawn
    assert "a line of the flow's own" in lines
    assert lines.index("penumbra: no brick is left") < lines.index("the end")
    for unwanted in ("Finished in state", "Traceback", "telemetry"):
        assert unwanted not in drawn, drawn
