"""Take the pictures of docs/pictures with a headless Chromium, after `make demo`.

python -m bench.pictures [browse] [demo-app] [ui]

The pages show the paths of artifacts, which PENUMBRA_ARTIFACTS determines.
"""

import base64
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.processes import ending_with_us
from penumbra.artifacts.store import Store
from tests.browser import Page, browser

PICTURES = PROJECT / "docs" / "pictures"
FILM, SENTENCE = PROJECT / "examples" / "unseen_scene.mp4", "the woman waves."
WIDTH = 1280
PENUMBRA = "penumbra"
PATIENCE = 900.0  # seconds


def take(tab: Page, name: str, height: int, width: int = WIDTH) -> None:
    """Write a picture of the tab to docs/pictures."""
    tab.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
    time.sleep(2)  # until fonts are loaded and animations have ended
    picture = tab.call("Page.captureScreenshot", format="png")["data"]
    (PICTURES / f"{name}.png").write_bytes(base64.b64decode(picture))
    sys.stdout.write(f"{PICTURES / name}.png\n")


@contextmanager
def tab(height: int) -> Iterator[Page]:
    place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # the browser may still write files
    with place as folder, browser(Path(folder), f"{WIDTH},{height}") as page:
        yield page


@contextmanager
def started(pattern: str, *arguments: str, **variables: str) -> Iterator[str]:
    """Run a command of `penumbra` in a process; yield the part of its output that matches the pattern."""
    command = ending_with_us(PENUMBRA, *arguments)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}) as process:
        assert process.stdout
        try:
            yield next(found[0] for line in process.stdout if (found := re.findall(pattern, line)))
        finally:
            process.terminate()
            process.wait(60)


def take_browse() -> None:
    """Take the page of the shipped data set, with a run if there is one."""
    with tempfile.TemporaryDirectory(dir=PROJECT / "build") as folder, tab(760) as page:
        file = Path(folder) / "scenes.html"
        command = [sys.executable, "-m", PENUMBRA, "browse", "scenes", "--output", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        page.open(file.as_uri())
        page.wait_for("document.documentElement.dataset.ready == 'yes'")
        take(page, "browse", 760)


def take_demo_app() -> None:
    """Take the page of `demo-app` with a sentence and a video that is in no training set."""
    app = started(r"http://127\.0\.0\.1:\d+", "demo-app", "--port", "0")
    with app as address, tab(760) as page:
        page.open(address)
        page.wait_for("document.querySelectorAll('input[type=file], textarea').length >= 2")
        page.choose_file("input[type=file]", FILM)
        page.wait_for("document.querySelector('video') !== null")
        page.evaluate("document.querySelector('textarea').focus()")
        page.type(SENTENCE)
        page.evaluate("document.querySelector('button.primary').click()")
        page.wait_for("document.querySelectorAll('.found .windows').length >= 4", 300)
        take(page, "demo-app", int(page.evaluate("document.documentElement.scrollHeight")))


def take_ui() -> None:
    """Take Prefect's pages: the deployments, a run of build-negatives, one of its stages, and its report."""
    with tempfile.TemporaryDirectory() as home:
        served = {"XDG_DATA_HOME": home, "PENUMBRA_AUTH": "penumbra:pictures", "PENUMBRA_ARTIFACTS": Store().root}
        with started(r"runs at: +(http://\S+)", "serve", "--port", "4299", **served) as address:
            credential = tuple(served["PENUMBRA_AUTH"].split(":"))
            api = httpx.Client(base_url=f"{address}/api/", auth=credential, timeout=60)
            deployed = api.get("deployments/name/build-negatives/scenes").json()["id"]
            flow_run = api.post(f"deployments/{deployed}/create_flow_run", json={}).json()["id"]
            end = time.monotonic() + PATIENCE
            while api.get(f"flow_runs/{flow_run}").json()["state_type"] not in ("COMPLETED", "FAILED", "CRASHED"):
                if time.monotonic() > end:
                    raise TimeoutError("the run takes too long")
                time.sleep(2)
            found = api.post("artifacts/filter", json={"limit": 200}).json()
            keys = {it["key"]: it["id"] for it in found if it["key"]}
            stage = next(key for key in keys if "negatives" in key and "stage" in key and "video" not in key)
            report = next(key for key in keys if "build-negatives" in key and "report" in key)
            pages = (
                ("deployments", "deployments", 760),
                (f"runs/flow-run/{flow_run}", "run", 700),
                (f"artifacts/artifact/{keys[stage]}", "stage", 860),
                (f"artifacts/artifact/{keys[report]}", "report", 700),
            )
            with tab(860) as page:
                page.log_in(served["PENUMBRA_AUTH"])
                for path, name, height in pages:
                    page.open(f"{address}/{path}")
                    page.text("scenes")
                    time.sleep(5)  # until the graph is drawn
                    take(page, name, height)


ALL = {"browse": take_browse, "demo-app": take_demo_app, "ui": take_ui}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or ALL:
        ALL[wanted]()
