"""Processes end with the process that started them."""

import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.slow

STARTER = """
import subprocess, time
from penumbra.artifacts.processes import ending_with_us
process = subprocess.Popen(ending_with_us("http.server", "--bind", "127.0.0.1", "0"), start_new_session=True)
print(process.pid, flush=True)
time.sleep(600)
"""


def test_a_process_ends_when_its_parent_is_killed() -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    program = psutil.Process(int(starter.stdout.readline()))
    time.sleep(3)
    assert program.is_running(), "it goes on while the other does"
    starter.kill()
    starter.wait()
    _, left = psutil.wait_procs([program], timeout=30)
    assert left == []
