"""Where the negatives come from: filled masks, as SHINE has it, or whole sentences."""

from typing import Literal

from pydantic import Field, field_validator

from penumbra.tasks.negatives.filling import Filling
from penumbra.tasks.stage import Parameters


class Sourcing(Parameters):
    """Where the negatives come from."""

    source: Literal["fills", "nearest", "imported"] = Field(
        "fills",
        description="fills: chosen of what the providers filled; nearest: other training queries, a control; imported: "
        "what others have made.",
    )
    file: str = Field(
        "", description="The file of `imported`: JSON lines, CSV or TSV; without one it is what was imported last."
    )
    ranks: tuple[int, int, int] = Field(
        (1, 30, 300),
        description="Of `nearest`: how many other queries are nearer than each level's, this one included. On "
        "Charades-CG the mean cosines are then 0.87, 0.76 and 0.52.",
    )

    def name_of(self, filling: Filling) -> str:
        """What runs are called after: the providers, or where whole sentences come from."""
        return "+".join(filling.providers) if self.source == "fills" else self.source

    @field_validator("ranks")
    @classmethod
    def _rising(cls, ranks: tuple[int, int, int]) -> tuple[int, int, int]:
        if not 1 <= ranks[0] < ranks[1] < ranks[2]:
            raise ValueError(f"ranks {ranks} must rise from 1 on, as (1, 30, 300)")
        return ranks
