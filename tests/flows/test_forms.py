"""The form of a deployment in the Prefect UI, filled in by a real browser: a preset is trained as it is shown."""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from penumbra.flows.parameters import deployment_parameters
from penumbra.flows.server import listen, start_server, stop, wait_for
from penumbra.flows.train_grounding import train_grounding
from penumbra.tasks.grounding.training.presets import Settings, layered, with_preset
from tests.browser import Page, browser, needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]
DEPLOY = """
from penumbra.flows.parameters import deployment_parameters
from penumbra.flows.train_grounding import train_grounding
train_grounding.to_deployment("scenes", parameters=deployment_parameters("train-grounding", "scenes")).apply()
"""
PRESET = "scenes-qd_detr-shine"
CREDENTIAL = "penumbra:of-this-test"
BUTTONS = "[...document.querySelectorAll('button')]"


class Form:
    """The page on which a run of a deployment is begun."""

    def __init__(self, url: str, page: Page) -> None:
        self.url, self.page = url, page
        deployment = self.api("deployments/filter")[0]
        page.open(f"{url}/deployments/deployment/{deployment['id']}/run")
        page.wait_for("document.body && document.body.innerText.includes('Submit') && !!" + self._field("Preset"))

    def api(self, path: str) -> Any:
        password = f"Basic {base64.b64encode(CREDENTIAL.encode()).decode()}"
        headers = {"Content-Type": "application/json", "Authorization": password}
        request = urllib.request.Request(f"{self.url}/api/{path}", b"{}", headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def _field(self, label: str) -> str:
        """The element around a label and what belongs to it."""
        return (
            "[...document.querySelectorAll('label')].filter(it => it.innerText.trim().toLowerCase()"
            f".replace(' (optional)', '') == {json.dumps(label.lower())}).map(it => it.parentElement.parentElement)[0]"
        )

    def choose(self, label: str, tab: str) -> None:
        """Choose one of several kinds of a parameter."""
        self.page.evaluate(
            f"[...{self._field(label)}.querySelectorAll('button')].find(it => it.innerText.trim() == '{tab}').click()"
        )

    def fill(self, label: str, text: str) -> None:
        """Type a value."""
        self.page.wait_for(f"!!{self._field(label)}")
        self.page.evaluate(f"{self._field(label)}.querySelector('input, textarea').focus()")
        self.page.type(text)

    def submit(self) -> dict[str, Any]:
        """The parameters of the run that the form begins."""
        before = len(self.api("flow_runs/filter"))
        self.page.evaluate(f"{BUTTONS}.find(it => it.innerText.trim() == 'Submit').click()")
        end = time.monotonic() + 30
        while len(runs := self.api("flow_runs/filter")) == before:
            assert time.monotonic() < end, self.page.text()
            time.sleep(0.2)
        parameters: dict[str, Any] = max(runs, key=lambda run: run["created"])["parameters"]
        return parameters


def settings_of(parameters: dict[str, Any]) -> Settings:
    """What the flow makes of the parameters."""
    seen = train_grounding.validate_parameters(parameters)
    return with_preset(seen["preset"], {name: seen[name] for name in ("model", "training", "inputs", "ranking")})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prefect server that has the deployment train-grounding/scenes with its parameters of prefect.yaml."""
    listener, home = listen(0), tmp_path_factory.mktemp("prefect")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    api = {"PREFECT_HOME": str(home), "PREFECT_API_URL": f"{url}/api", "PREFECT_SERVER_UI_API_URL": f"{url}/api"}
    api["PREFECT_API_AUTH_STRING"] = CREDENTIAL
    process = start_server(listener, CREDENTIAL, {**os.environ, **api})
    try:
        wait_for(int(url.rpartition(":")[2]))
        subprocess.run([sys.executable, "-c", DEPLOY], env={**os.environ, **api}, check=True)
        yield url
    finally:
        stop(process)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        page.log_in(CREDENTIAL)
        yield page


def test_unchanged_it_trains_the_preset(server: str, page: Page) -> None:
    assert deployment_parameters("train-grounding", "scenes")["preset"] == PRESET
    assert settings_of(Form(server, page).submit()) == layered(PRESET)


def test_a_field_of_the_model_changed_to_its_default_is_explicitly_set(server: str, page: Page) -> None:
    form = Form(server, page)
    form.choose("model", "QDDETR")
    form.fill("Hidden", "256")
    posted = form.submit()
    assert posted["model"] == {"name": "qd_detr", "hidden": 256}, "nothing that nobody touched is posted"
    assert settings_of(posted) == layered(PRESET, {"model": {"hidden": 256}})
