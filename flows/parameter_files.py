"""Parameters from YAML files: of one run (`--config FILE`), and a data set's own (`penumbra.yaml` in its folder).

A data set's file has a group of parameters for each flow, which are those of the deployment FLOW/DATASET.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.manifest import NAME
from penumbra.artifacts.settings import data_folder
from penumbra.flows.names import FLOWS

OWN = "penumbra.yaml"
NEW = """\
# What `penumbra run FLOW {name}` starts from, and what `penumbra serve` shows as FLOW/{name}: a flow, and below it its
# parameters, in groups or by names with dots. `penumbra run FLOW --help` lists them; --config and --param beat them.
build-negatives:
  # masking.ratios: [0.25, 0.5, 0.75]   # of a query's words that carry meaning, by level
  # providers: [corpus]                 # or openai, gemini, llama, random
extract-features:
train-grounding:
  # epochs: 100
evaluate-grounding:
full-pipeline:
"""


class ParameterError(PenumbraError):
    """There is no such flow or parameter, or a value does not fit it."""


def nested(place: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A value as nested parameters."""
    for name in reversed(place):
        value = {name: value}
    return dict(value)


def parameters_in(file: Path) -> dict[str, Any]:
    """The parameters of a YAML file, in groups or by names with dots, as in `filling.candidates: 4`.

    Raises `ParameterError` naming the file, and the line where it is no YAML.
    """
    return _without_dots(_read(file, f"--config {file}"), f"--config {file}")


def own_parameters(dataset: str) -> dict[str, dict[str, Any]]:
    """What a data set's own file says, by flow; empty where it has none.

    Raises `ParameterError` naming the file, and the line where it is no YAML, or what is no flow.
    """
    file = data_folder() / dataset / OWN
    if not NAME.match(dataset) or not file.is_file():
        return {}
    told = _read(file, str(file))
    unknown = [flow for flow in told if flow not in FLOWS]
    if unknown:
        raise ParameterError(f"{file}: no flow {unknown[0]!r}; there is: {', '.join(FLOWS)}")
    return {flow: _without_dots(said or {}, f"{file}, below {flow!r},") for flow, said in told.items()}


def datasets_with_own() -> Iterator[str]:
    """The data sets that have a file of their own."""
    yield from sorted(file.parent.name for file in data_folder().glob(f"*/{OWN}"))


def write_own(dataset: str) -> Path | None:
    """Write a data set's own file, to be edited; one that is there stays as it is, and None says so."""
    file = data_folder() / dataset / OWN
    if file.exists():
        return None
    file.write_text(NEW.format(name=dataset), encoding="utf-8")
    return file


def _read(file: Path, called: str) -> Mapping[str, Any]:
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{called} can't be read ({error}): name a YAML file of parameters") from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ParameterError(f"{called}{line} is no YAML ({error.problem}): write NAME: VALUE lines") from None
    if not isinstance(said, dict):
        raise ParameterError(f"{called} holds no NAME: VALUE lines, as in filling.candidates: 4")
    return said


def _without_dots(said: Any, called: str) -> dict[str, Any]:
    from penumbra.tasks.stage import merge  # it imports prefect, which reads its environment once

    if not isinstance(said, dict) or not all(isinstance(name, str) and all(name.split(".")) for name in said):
        raise ParameterError(f"{called} holds no NAME: VALUE lines, as in filling.candidates: 4")
    return reduce(merge, (nested(tuple(name.split(".")), value) for name, value in said.items()), {})
