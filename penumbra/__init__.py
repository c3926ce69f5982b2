"""Hierarchical hard negatives for temporal grounding, and the training that uses them.

>>> import penumbra
>>> nouns = ("door", "box", "bag")
>>> sentences = [f"a person {verb} the {noun}." for verb in ("opens", "closes", "takes") for noun in nouns]
>>> negatives = penumbra.build_negatives(sentences)
>>> list(negatives.columns)[:4]
['qid', 'level', 'query', 'negative']

Importing it takes milliseconds: what a function needs is imported when it is called.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from penumbra.tasks.grounding.prediction import Grounder
    from penumbra.tasks.stage import Parameters

    Group = Mapping[str, Any] | Parameters | None
else:

    def __getattr__(name: str) -> Any:
        if name == "Grounder":
            from penumbra.tasks.grounding.prediction import Grounder

            return Grounder
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Grounder", "build_negatives", "quality", "read", "runs"]


def read(reference: str, columns: "Sequence[str] | None" = None) -> "pd.DataFrame":
    """Read an artifact as a data frame.

    Windows and other nested values are lists and dicts; features are NumPy arrays.

    Args:
        reference: DATASET/STAGE, the newest whole one, or DATASET/STAGE/KEY, as `penumbra artifacts ls` lists them
        columns: which ones; default: all

    Raises:
        ArtifactError: nothing is called so, or it has no such column; the message tells what there is

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
    english: bool = True,
    quiet: bool = True,
) -> "pd.DataFrame":
    """Build hard negatives of the queries, three levels each, as `penumbra run build-negatives` does.

    Words are replaced by words of the same kind that other queries have, so give all that there are: some dozens at
    least. What was built before is found, not built again.

    Args:
        queries: sentences, or a data frame with a column `query`; `qid`, `vid`, `split`, `duration` and `windows` are
            taken where it has them, and negatives are built for the split `train`. Queries of one video (`vid`) are
            never each other's negatives
        name: what the data set is called from now on, for `read` and `penumbra run`; without one it is `sentences`, and
            only its artifacts stay
        tagging: which spaCy pipeline; this group and the others as `penumbra run build-negatives --help` lists them
        masking: how much each level masks, as in `{"ratios": [0.25, 0.5, 0.75]}`
        filling: who fills, as in `{"providers": ["corpus"], "candidates": 8}`
        encoding: which sentence encoder measures similarity
        choosing: which candidates are refused, as in `{"ceiling": 0.9}`
        judging: how a quality report is made, which is left out by default: see `quality`
        english: reject queries that are plainly in another language
        quiet: show warnings only

    Returns:
        The columns of the artifact `negatives`: `qid`, `level` (1 to 3), `query`, `negative` (the sentence), `words`,
        `provider`, `model`, `similarity`, `plausibility` and `checks`. A query without a good negative has no row;
        `read("sentences/rejected")` says why

    Raises:
        DatasetError: the queries are no sentences, or the name is taken
        ParameterError: there is no such parameter, or its value does not fit

    >>> negatives = penumbra.build_negatives(sentences, masking={"ratios": [0.25, 0.5, 0.75]})
    >>> first = negatives[negatives["qid"] == "0"]
    >>> sorted(first["level"])
    [1, 2, 3]
    >>> set(first["query"])
    {'a person opens the door.'}

    """
    from penumbra.artifacts.store import Store
    from penumbra.flows.python_api import negatives_for

    groups: dict[str, Group] = {
        "tagging": tagging,
        "masking": masking,
        "filling": filling,
        "encoding": encoding,
        "choosing": choosing,
        "judging": {"judge": False} if judging is None else judging,
    }
    given = {group: value for group, value in groups.items() if value is not None}
    return Store().frame(negatives_for(queries, name, given, quiet, english))


def quality(negatives: "str | Path | pd.DataFrame", dataset: str | None = None, **settings: Any) -> "pd.DataFrame":
    """Judge negatives, anyone's: figures by level and provider, with intervals and two controls.

    Args:
        negatives: DATASET/negatives or DATASET/fills of the store, a file (SHINE's JSON lines, or one negative a row),
            or a data frame as `build_negatives` gives it
        dataset: the data set whose annotations judge a file or a data frame; default: the one that has its first query
        settings: of the report, as `penumbra run build-negatives --help` lists them under `judging`

    Returns:
        Columns `level` (0: no single one), `provider`, `metric` and `value`

    Raises:
        NegativesError: there are no such negatives, a row is none, or a setting is wrong

    >>> figures = penumbra.quality(negatives, resamples=0)
    >>> list(figures.columns)
    ['level', 'provider', 'metric', 'value']

    """
    from penumbra.artifacts.store import Store
    from penumbra.flows.local_run import warnings_only
    from penumbra.tasks.negatives.quality.command import evaluate_frame, evaluate_reference

    with warnings_only():
        if isinstance(negatives, str | Path):
            judged = evaluate_reference(str(negatives), dataset, settings)
        else:
            judged = evaluate_frame(negatives, dataset, settings)
    return Store().frame(judged.artifact)


def runs(dataset: str | None = None) -> "pd.DataFrame":
    """All finished trainings, oldest first, with the figures of their newest evaluation.

    Args:
        dataset: only those on this one

    Returns:
        A row a training: `run` (its name, which `Grounder.of_run` takes), `dataset`, `key`, `model`, `negatives`
        (PROVIDERS/KEY), `finished` (UTC), `seconds`, `size` (bytes of its checkpoints and artifacts), and a column a
        figure: `SPLIT METRIC`, as in `test R1@0.5`, in percent

    >>> best = penumbra.runs("scenes").sort_values("test R1@0.5").iloc[-1]  # doctest: +SKIP
    >>> penumbra.Grounder.of_run(best["key"]).ground("video.mp4", ["a person opens the door."])  # doctest: +SKIP

    """
    import pandas as pd

    from penumbra.tasks.grounding.runs import COLUMNS, trained_runs

    rows = list(trained_runs(dataset))
    return pd.DataFrame(rows, columns=None if rows else COLUMNS)
