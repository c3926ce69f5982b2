"""The wheel contains all files of the packages and no others, and works in a folder with modules of the same names."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penumbra.artifacts.locations import PROJECT
from penumbra.artifacts.store import Store
from tests.cluster import free_port
from tests.examples.test_examples import execute

PACKAGES = ("artifacts", "flows", "models", "prompts", "tasks")
BESIDE = ("pyproject.toml", "README.md", "prefect.yaml")

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Installed:
    """A Python that has the wheel, and a folder with modules of the user's own, in which all commands start."""

    folder: Path
    python: Path
    files: list[str]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a user who has set no variable."""
        home = {"HOME": str(self.folder / "home"), "PREFECT_HOME": str(self.folder / "prefect")}
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PENUMBRA_", "PYTHON", "XDG_"))
        }
        return {**kept, **home, "PATH": f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"}

    @property
    def data(self) -> Path:
        return self.folder / "home" / ".local" / "share" / "penumbra"

    @property
    def here(self) -> Path:
        return self.folder / "here"

    def penumbra(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.python.with_name("penumbra")), *arguments]
        return subprocess.run(
            command, cwd=self.here, env=self.environment, capture_output=True, text=True, timeout=900, check=False
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build(folder)
    python = new_environment(folder / "venv")
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    here = folder / "here"
    (here / "models").mkdir(parents=True)
    for name in ("models/__init__.py", "tasks.py", "flows.py", "artifacts.py", "prompts.py"):
        (here / name).write_text("raise RuntimeError('a module of the user was imported')\n")
    (here / "prefect.yaml").write_text("deployments: [{name: mine}]\n")
    with zipfile.ZipFile(wheel) as archive:
        return Installed(folder, python, archive.namelist())


def new_environment(folder: Path) -> Path:
    """Return the Python of an environment with the other packages, as they are, and without this code."""
    venv.create(folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # a line of a .pth file does not read that folder's own .pth files, such as that of this code's editable install
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def copied(copy: Path) -> Path:
    """Copy the sources, because setuptools leaves files where it builds."""
    for package in (*PACKAGES, "penumbra"):
        foreign = ("__pycache__", "data") if package == "artifacts" else ("__pycache__",)
        shutil.copytree(PROJECT / package, copy / package, symlinks=True, ignore=shutil.ignore_patterns(*foreign))
    (copy / "artifacts" / "data" / "mine" / "masks").mkdir(parents=True)
    (copy / "artifacts" / "data" / "mine" / "masks" / "readme.txt").touch()
    for name in BESIDE:
        shutil.copy(PROJECT / name, copy / name)
    return copy


def build(folder: Path) -> Path:
    copy = copied(folder / "source")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(copy))
    [wheel] = (folder / "dist").glob("*.whl")
    return wheel


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sources() -> Iterator[str]:
    """Yield the names, in the wheel, of all files of the packages."""
    for package in (*PACKAGES, "penumbra"):
        for path in (PROJECT / package).rglob("*"):
            place = path.relative_to(PROJECT)
            if path.is_file() and "__pycache__" not in place.parts and place.parts[:2] != ("artifacts", "data"):
                yield place.as_posix() if package == "penumbra" else f"penumbra/{place.as_posix()}"


def test_the_wheel_has_the_files_of_the_packages_and_no_others(installed: Installed) -> None:
    ours = [name for name in installed.files if ".dist-info/" not in name]
    assert sorted(ours) == sorted(sources())
    needed = ("models/tiny_clip/model.safetensors", "flows/prefect.yaml", "tasks/data/scenes/videos/S0001.mp4")
    assert {f"penumbra/{name}" for name in needed} <= set(ours)


def test_a_clone_is_imported_from_the_folder_above_it(tmp_path: Path) -> None:
    clone = copied(tmp_path / "penumbra")
    python = str(new_environment(clone / ".venv"))
    pip("--python", python, "install", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(clone))
    command = [python, "-c", "import penumbra; print(penumbra.build_negatives.__module__, penumbra.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["penumbra", str(clone / "penumbra" / "__init__.py")], done.stderr


def test_a_table_becomes_negatives_a_page_and_deployments(installed: Installed) -> None:
    """The commands of a first hour, in any folder, with the wheel alone."""
    sentences = (PROJECT / "tests" / "data" / "cooking.csv").read_text().splitlines()
    header, *rows = sentences[:60]
    table = [f"{header},duration", *(f"{row},60" for row in rows)]  # there are no videos to measure
    (installed.here / "rows.csv").write_text("\n".join(table) + "\n")
    doctor = installed.penumbra("doctor")
    assert "Python" in doctor.stdout, doctor.stderr
    for words in (
        ["init", "mine", "--from", "rows.csv"],
        ["check", "mine"],
        ["run", "build-negatives", "mine", "--param", "providers=[corpus]", "--param", "judge=false"],
        ["browse", "mine"],
        ["artifacts", "verify"],
    ):
        done = installed.penumbra(*words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    assert (installed.data / "datasets" / "mine" / "penumbra.yaml").is_file()
    assert (installed.data / "artifacts" / "mine" / "negatives").is_dir()
    served = subprocess.Popen(
        [str(installed.python.with_name("penumbra")), "serve", "--dataset", "mine", "--port", str(free_port())],
        cwd=installed.here,
        env=installed.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines: list[str] = []
    try:
        for line in served.stdout or ():
            lines.append(line)
            if "Ctrl-C ends it" in line:
                break
    finally:
        served.send_signal(signal.SIGINT)
        served.communicate(timeout=90)
    assert "5 deployments of mine\n" in lines, lines
    assert served.returncode == 0


def test_the_notebook_runs(installed: Installed) -> None:
    notebook = PROJECT / "examples" / "sentences_to_negatives.ipynb"
    shown = execute(notebook, installed.python, installed.here, installed.environment)
    assert "similarity" in shown
    assert "<mask>" in shown
    store = Store(str(installed.data / "artifacts"))
    assert len(store.find("kitchen", "negatives")) == 1, "the second call finds what the first built"
    assert len(store.find("sentences", "negatives")) == 1
    assert (installed.data / "datasets" / "kitchen" / "train.jsonl").is_file()
