"""The tables of a recording by name, wherever it is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class Tables(ABC):
    """What every recording offers to notebooks and scripts, on top of reading a table by its name."""

    @abstractmethod
    def table(self, name: str) -> pa.Table:
        """All rows of a table, with the job in the column ``job``. Raises UsageError for a name that is none."""

    def steps(self) -> pa.Table:
        """A row a step of a rank: durations and phases in ns, -1 unmeasured."""
        return self.table("steps")

    def collectives(self) -> pa.Table:
        """A row a collective or point-to-point call of a rank."""
        return self.table("collectives")

    def metrics(self) -> pa.Table:
        """A row a sample of a node or process metric; ``labels`` is JSON."""
        return self.table("metrics")

    def ranks(self) -> pa.Table:
        """A row each time a rank said who it is."""
        return self.table("ranks")
