"""`import-negatives`: hard negatives from a file, as the same table that `build-negatives` writes.

penumbra run import-negatives charades-cg --param file=release.jsonl
penumbra run import-negatives charades-sta --param file=charades_ood_neg_test.jsonl --param kind='another domain'
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from penumbra.flows.build_negatives import negatives_of
from penumbra.flows.registry import Outcome, named_flow
from penumbra.tasks.data.dataset import Dataset
from penumbra.tasks.engines import use_engine
from penumbra.tasks.negatives.files import check_file, read_negatives
from penumbra.tasks.negatives.parameters import Negatives, NegativeSource, NegativesParameters, QualityConfig
from penumbra.tasks.negatives.selection import Choosing
from penumbra.tasks.text.embeddings import Encoding
from penumbra.tasks.text.tags import Tagging

File = Annotated[
    str, Field(description="SHINE's release (JSON lines), or one negative a row: JSON lines, CSV, TSV or Parquet.")
]

Kind = Annotated[
    str,
    Field(
        description="Kind of false sentences for evaluation only, such as `another domain`: each sentence of the file "
        "(JSON lines with vid and query, as NA-VMR's) is false of its video. Default: negatives for training."
    ),
]


@named_flow("import-negatives")
def import_negatives(
    dataset: Dataset,
    file: File = "",
    kind: Kind = "",
    tagging: Tagging = Tagging(),
    encoding: Encoding = Encoding(),
    choosing: Choosing = Choosing(),
    judging: QualityConfig = QualityConfig(),
) -> Outcome[Negatives]:
    """Read the negatives of a file, and record which checks of `choosing` each of them passes."""
    path = Path(file).expanduser()
    check_file(path) if kind else read_negatives(path)  # both raise for a wrong file before anything is made
    sourcing = NegativeSource(source="imported", file=file, kind=kind)
    settings = NegativesParameters(
        sourcing=sourcing, tagging=tagging, encoding=encoding, choosing=choosing, judging=judging
    )
    with use_engine(None):
        result = negatives_of(dataset, settings)
    return result, result.outcome
