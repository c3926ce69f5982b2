"""The examples of docs/scale.md agree with the tools and with the compose file."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penumbra.artifacts.locations import PROJECT

pytestmark = pytest.mark.slow

PAGE = PROJECT / "docs" / "scale.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_job_script_is_what_slurm_would_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask_jobqueue", reason="needs dask-jobqueue")
    monkeypatch.chdir(tmp_path)
    code = blocks("python")[0].replace('"port": 8786', '"port": 0, "host": "127.0.0.1"').partition("cluster.scale")[0]
    names: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec"), names)
    try:
        script = re.sub(r"tcp://127\.0\.0\.1:\d+", "tcp://login:8786", names["cluster"].job_script())
    finally:
        names["cluster"].close()
    assert script.strip() == blocks("sh")[0].strip()


def test_the_manifests_fit_together_and_are_those_of_compose() -> None:
    found = list(yaml.safe_load_all(blocks("yaml")[0]))
    services = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())["services"]
    deployments = {it["metadata"]["name"]: it["spec"] for it in found if it["kind"] == "Deployment"}
    assert set(deployments) == {"dask-scheduler", "dask-worker"}
    for name, spec in deployments.items():
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels == {"app": name}
        (container,) = spec["template"]["spec"]["containers"]
        assert container["image"] == services[name]["image"]
        assert container["command"] == services[name]["command"][: len(container["command"])]
    (service,) = [it for it in found if it["kind"] == "Service"]
    (policy,) = [it for it in found if it["kind"] == "NetworkPolicy"]
    (port,) = service["spec"]["ports"]
    (container,) = deployments["dask-scheduler"]["template"]["spec"]["containers"]
    assert service["spec"]["selector"] == policy["spec"]["podSelector"]["matchLabels"] == {"app": "dask-scheduler"}
    assert container["ports"] == [{"containerPort": port["targetPort"]}] == [{"containerPort": port["port"]}]
    (worker,) = deployments["dask-worker"]["template"]["spec"]["containers"]
    assert f"tcp://{service['metadata']['name']}:{port['port']}" in worker["command"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": port["port"]}]
