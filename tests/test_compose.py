"""docker-compose.yml, Dockerfile and the locks, checked without Docker."""

import os
import re
import shlex
import subprocess
import tomllib
from importlib import metadata
from typing import Any

import pytest
import yaml
from check_jsonschema.builtin_schemas import get_builtin_schema
from jsonschema import Draft7Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from penumbra.artifacts.locations import PROJECT

COMPOSE = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DEPLOYMENTS = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
SECRET = re.compile(r"AUTH|PASSWORD|SECRET|TOKEN|KEY")
EXACT_TAG = re.compile(r"[a-z0-9./-]+:\d+\.\d+(\.\d+)?(-[a-z0-9-]+)?")


def environment(service: str) -> dict[str, str]:
    return SERVICES[service].get("environment", {})


def interpolate(text: str, given: dict[str, str]) -> str:
    """Substitute variables as `docker compose` does, in the forms that the file uses."""
    return re.sub(r"\$\{(\w+):[-?]([^}]*)\}", lambda m: given.get(m[1], m[2]), text).replace("$$", "$")


def command_of(service: str) -> str:
    return " ".join(SERVICES[service].get("command", ()))


def test_file_follows_the_compose_specification() -> None:
    problems = [e.message for e in Draft7Validator(get_builtin_schema("vendor.compose-spec")).iter_errors(COMPOSE)]
    assert problems == []


@pytest.mark.parametrize("service", SERVICES)
def test_secrets_are_required_from_outside(service: str) -> None:
    for name, value in environment(service).items():
        if value is None:  # handed through from the shell as it is
            continue
        if SECRET.search(name):
            assert re.fullmatch(r"\$\{PENUMBRA_(AUTH|DB_PASSWORD|REDIS_PASSWORD):\?[^}]+\}", value), name
        credentials = re.search(r"://([^/]*)@", value)
        assert not credentials or re.fullmatch(r":\$\{PENUMBRA_REDIS_PASSWORD:\?[^}]+\}", credentials[1]), name


@pytest.mark.parametrize("service", SERVICES)
def test_containers_have_exact_images_few_rights_and_bounded_memory(service: str) -> None:
    given = SERVICES[service]
    assert EXACT_TAG.fullmatch(given["image"])
    assert given["security_opt"] == ["no-new-privileges:true"]
    assert (given["cap_drop"], given["read_only"]) == (["ALL"], True)
    assert given.keys().isdisjoint({"cap_add", "privileged"})
    assert re.fullmatch(r"\d+g", interpolate(given["mem_limit"], {}))


def test_redis_wants_the_password_that_its_clients_have() -> None:
    """Run the service's own command: the password is on no command line."""
    *shell, program = [interpolate(word, {}) for word in SERVICES["redis"]["command"]]
    assert "$REDISCLI_AUTH" in program
    command = [*shell, program.replace("redis-server -", "cat")]
    variables = {**os.environ, "REDISCLI_AUTH": "secret7"}
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
    assert shown == "appendonly yes\nrequirepass secret7\n"
    for name in ("PREFECT_REDIS_MESSAGING_URL", "PREFECT_SERVER_DOCKET_URL"):
        url = interpolate(environment("server")[name], {"PENUMBRA_REDIS_PASSWORD": "secret7"})
        assert url.startswith("redis://:secret7@redis:6379/")


def test_every_prefect_process_asks_for_or_sends_the_password() -> None:
    for service in SERVICES.keys() - {"postgres", "redis", "dask-scheduler"}:
        assert {"PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"} & environment(service).keys(), service


def test_prefect_takes_the_values_and_any_password(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import Settings
    from sqlalchemy import make_url

    password = "p@s/s:w%r d$1"
    for name, value in environment("server").items():
        monkeypatch.setenv(name, interpolate(value, {"PENUMBRA_AUTH": "a:b", "PENUMBRA_DB_PASSWORD": password}))
    server = Settings().server
    assert server.api.auth_string.get_secret_value() == "a:b"
    url = make_url(server.database.connection_url.get_secret_value())
    assert (url.drivername, url.host, url.password) == ("postgresql+asyncpg", "postgres", password)
    assert url.database == environment("postgres")["POSTGRES_DB"]
    assert url.username == environment("postgres")["POSTGRES_USER"]


def test_one_service_migrates_and_the_others_wait_for_it() -> None:
    assert [name for name in SERVICES if "server database upgrade" in command_of(name)] == ["migrate"]
    for service in ("server", "services"):
        assert environment(service)["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] == "false"
        assert SERVICES[service]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_every_deployment_has_a_pool_and_a_worker() -> None:
    polled = {pool for name in ("worker", "gpu-worker") for pool in re.findall(r"--pool (\S+)", command_of(name))}
    created = set(re.findall(r"for pool in (.+); do", command_of("deploy"))[0].split())
    assert created == polled
    assert {deployment["work_pool"]["name"] for deployment in DEPLOYMENTS} <= polled


def test_the_browser_reaches_the_server() -> None:
    [port] = SERVICES["server"]["ports"]
    address, _, inner = interpolate(port, {}).rpartition(":")
    assert inner == "4200"
    assert address.startswith("127.0.0.1:")  # the password travels in the clear: not to the world by default
    assert interpolate(environment("server")["PREFECT_SERVER_UI_API_URL"], {}) == f"http://{address}/api"
    origins = environment("server")["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]
    assert interpolate(origins, {}) == f"http://{address}", "pages of no other origin may call it"
    for service in ("postgres", "redis"):
        assert "ports" not in SERVICES[service]
        assert [COMPOSE["networks"][network] for network in SERVICES[service]["networks"]] == [{"internal": True}]


def test_runs_without_a_heartbeat_crash() -> None:
    from prefect.events.schemas.automations import AutomationCore
    from prefect.settings import get_current_settings

    [given] = re.findall(r"automation create .*?(\S+\.yaml)", command_of("deploy"))
    automation = AutomationCore.model_validate(yaml.safe_load((PROJECT / given).read_text()))
    assert automation.trigger.type == "event"
    heartbeat = get_current_settings().flows.heartbeat_frequency
    assert automation.trigger.within.total_seconds() >= 3 * heartbeat


def instructions() -> list[tuple[str, list[str]]]:
    """Return the Dockerfile's instructions and their words, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", (PROJECT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = (shlex.split(line) for line in text.splitlines() if line.strip())
    return [(name, words) for name, *words in lines]


def test_image_is_slim_exact_and_not_root() -> None:
    [base] = [words for name, words in instructions() if name == "FROM"]
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+", base[0])
    assert [words for name, words in instructions() if name == "USER"] == [["penumbra"]]
    owned = next(words for name, words in instructions() if name == "RUN" and "useradd" in words)
    volumes = [volume.partition(":") for volume in SERVICES["worker"]["volumes"]]
    assert {target for source, _, target in volumes if source in COMPOSE["volumes"]} <= set(owned)


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    ignored = [line for line in (PROJECT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    sources = {source for name, words in instructions() if name == "COPY" for source in words[:-1]}
    assert {source for source in sources if not (PROJECT / source).exists()} == set()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    assert "artifacts/data" in ignored


def test_image_installs_what_the_project_pins() -> None:
    words = [word for name, words in instructions() if name == "RUN" for word in words]
    [torch] = [word for word in words if word.startswith("torch==")]
    assert torch in PYPROJECT["project"]["dependencies"]
    assert not [word for word in words if word.startswith(".[")], "the lock holds what the extras need"
    assert words.count("--no-deps") == words.count("pip") - 1, "torch alone brings what fits the machine"
    assert ["--require-hashes", "--requirement", "requirements.lock"] in [words[n : n + 3] for n in range(len(words))]


def test_the_locks_hold_what_is_installed_and_all_that_the_project_needs() -> None:
    texts = [(PROJECT / name).read_text() for name in ("requirements.lock", "requirements-dev.lock")]
    pinned = [pair for text in texts for pair in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)]
    versions = {canonicalize_name(name): version for name, version in pinned}
    # wandb brings 60 MB and a telemetry SDK for one service: its tests run where somebody has installed it
    extras = {name: lines for name, lines in PYPROJECT["project"]["optional-dependencies"].items() if name != "wandb"}
    for text in (*PYPROJECT["project"]["dependencies"], *(line for extra in extras.values() for line in extra)):
        requirement = Requirement(text)
        if requirement.name != "torch":
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), text
    for name in ("prefect", "pyarrow", "transformers", "filelock"):
        assert metadata.version(name) == versions[name]
