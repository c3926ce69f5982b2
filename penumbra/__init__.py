"""Hierarchical hard negatives for temporal grounding, and the training that uses them.

>>> import penumbra
>>> actions, nouns = ("a person opens", "a man closes", "a woman takes"), ("door", "box", "bag")
>>> sentences = [f"{action} the {noun}." for action in actions for noun in nouns]
>>> negatives = penumbra.build_negatives(sentences)
>>> list(negatives.columns)[:4]
['qid', 'level', 'query', 'negative']

The import takes milliseconds: each function imports what it needs when it is called.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# On cores that other processes use, too, torch's threads would spend most of their time in busy loops, waiting for each
# other: training steps took 4 to 20 times as long while two others used both cores. Idle cores lose nothing.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

if TYPE_CHECKING:
    import pandas as pd

    from penumbra.tasks.grounding.prediction import Grounder
    from penumbra.tasks.parameter_group import Parameters

    Group = Mapping[str, Any] | Parameters | None
else:

    def __getattr__(name: str) -> Any:
        if name == "Grounder":
            from penumbra.tasks.grounding.prediction import Grounder

            return Grounder
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__


__all__ = ["Grounder", "build_negatives", "quality", "read", "runs"]


def read(reference: str, columns: "Sequence[str] | None" = None) -> "pd.DataFrame":
    """Return an artifact as a data frame.

    Windows and other nested values are lists and dicts; features are NumPy arrays.

    Args:
        reference: DATASET/STAGE for the newest artifact, DATASET/STAGE/KEY, as `penumbra artifacts ls` lists it, or
            DATASET/STAGE@PIN
        columns: names of the columns to read; default: all

    Raises:
        ArtifactError: there is no such artifact or column; the message lists those that exist

    >>> annotations = penumbra.read("sentences/annotations", columns=["qid", "query"])
    >>> annotations["query"][0]
    'a person opens the door.'

    """
    from penumbra.artifacts.store import Store

    store = Store()
    return store.frame(store.resolve(reference), columns)


def build_negatives(
    queries: "Sequence[str] | pd.DataFrame",
    *,
    name: str | None = None,
    tagging: "Group" = None,
    masking: "Group" = None,
    filling: "Group" = None,
    encoding: "Group" = None,
    choosing: "Group" = None,
    judging: "Group" = None,
    quiet: bool = True,
    **parameters: Any,
) -> "pd.DataFrame":
    """Return hard negatives of the queries at three levels, as `penumbra run build-negatives` builds them.

    Words are replaced by words of the same kind, mostly from other queries, so pass all queries of a data set, at least
    some dozens. Finished artifacts are reused.

    Args:
        queries: sentences, or a data frame with a column `query` and optionally `qid`, `vid`, `split`, `duration` and
            `windows`. Negatives are built for the split `train`. Queries of one video (`vid`) are never each other's
            negatives
        name: name of the data set for `read` and `penumbra run`; without a name it is `sentences`, and only its
            artifacts are kept
        tagging: the spaCy pipeline; `penumbra run build-negatives --help` describes this group and the following ones
        masking: the share of words that each level masks, as in `{"ratios": [0.25, 0.5, 0.75]}`
        filling: the providers, as in `{"providers": ["corpus"], "candidates": 8}`
        encoding: the sentence encoder that measures similarity
        choosing: the candidates that are rejected, as in `{"ceiling": 0.9}`
        judging: the settings of the quality report, which is not made by default; see `quality`
        quiet: whether only warnings are shown
        parameters: any parameter by its own name, as `--param` takes it: `providers=["corpus"]`

    Returns:
        The columns of the artifact `negatives`: `qid`, `level` (1 to 3), `query`, `negative` (the sentence), `words`,
        `provider`, `model`, `similarity`, `plausibility` and `checks`. A query without a good negative has no row;
        `attrs["rejected"]` lists the rejected rows with their reasons

    Raises:
        DatasetError: the queries are not sentences, or the name is taken
        ParameterError: a parameter does not exist, or has an invalid value

    >>> negatives = penumbra.build_negatives(sentences, masking={"ratios": [0.25, 0.5, 0.75]})
    >>> first = negatives[negatives["qid"] == "0"]
    >>> sorted(first["level"])
    [1, 2, 3]
    >>> set(first["query"])
    {'a person opens the door.'}

    """
    from penumbra.flows.local_run import negatives_for

    groups = {"tagging": tagging, "masking": masking, "filling": filling, "encoding": encoding, "choosing": choosing}
    given = {group: value for group, value in groups.items() if value is not None}
    given["judging"] = {"judge": False} if judging is None else judging
    return negatives_for(queries, name, {**given, **parameters}, quiet)


def quality(negatives: "str | Path | pd.DataFrame", dataset: str | None = None, **settings: Any) -> "pd.DataFrame":
    """Return quality figures of negatives by level and provider, with intervals and two controls.

    Args:
        negatives: DATASET/negatives or DATASET/fills of the store, a file (SHINE's JSON lines, or one negative a row),
            or a data frame as `build_negatives` returns it
        dataset: data set with the annotations for a file or data frame; default: the data set with the first query
        settings: settings of the report, as described under `judging` by `penumbra run build-negatives --help`

    Returns:
        A row for each provider and metric; columns `all levels`, `level 1`, `level 2` and `level 3`

    Raises:
        NegativesError: the negatives do not exist, a row is invalid, or a setting is wrong

    >>> figures = penumbra.quality(negatives, resamples=0)
    >>> figures.loc[("corpus", "rows")].index.to_list()
    ['all levels', 'level 1', 'level 2', 'level 3']

    """
    from penumbra.artifacts.store import Store
    from penumbra.tasks.negatives.quality.report import evaluate
    from penumbra.tasks.progress import warnings_only

    with warnings_only():
        figures = Store().frame(evaluate(negatives, dataset, settings))
    wide = figures.pivot(index=["provider", "metric"], columns="level", values="value")
    return wide.rename(columns=lambda level: f"level {level}" if level else "all levels").rename_axis(columns=None)


def runs(dataset: str | None = None) -> "pd.DataFrame":
    """Return all finished training runs, oldest first, with the figures of their newest evaluation.

    Args:
        dataset: return only runs on this data set

    Raises:
        ArtifactError: the data set has no artifacts

    Returns:
        One row for each run: `run` (the name that `Grounder.of_run` takes), `dataset`, `key`, `model`, `negatives`
        (PROVIDERS/KEY), `finished` (UTC), `seconds`, `size` (bytes of checkpoints and artifacts), and one column for
        each figure in percent, `SPLIT METRIC`, such as `test R1@0.5`

    >>> best = penumbra.runs("scenes").sort_values("test R1@0.5").iloc[-1]  # doctest: +SKIP
    >>> penumbra.Grounder.of_run(best["key"]).ground("video.mp4", ["a person opens the door."])  # doctest: +SKIP

    """
    import pandas as pd

    from penumbra.artifacts.store import Store
    from penumbra.tasks.grounding.runs import COLUMNS, all_runs

    rows = [run.row() for run in all_runs(dataset) if run.finished]
    if dataset and not rows and not any(Store().folders(dataset)):
        raise Store().missing(dataset)
    return pd.DataFrame(rows, columns=None if rows else COLUMNS)
