"""A report's rows of ranks, held as columns: of a large job rows are more work than verdicts, and few are looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from hindmost_judge.verdict.schema import PlainRows, RankRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hindmost_judge.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class RankRows(PlainRows):
    """Reads like a tuple of rows, each made when it is looked at.

    What ``ranks`` [N] are and did: ``texts`` and ``figures`` [N] by the name of their field, NaN where unmeasured.

    ``phases`` are [M] ms by name, of the ranks whose places are in ``judged`` [M]; ``logged`` those of others, by rank.
    """

    ranks: Ints
    texts: Mapping[str, list[str | None]]
    figures: Mapping[str, Floats]
    phases: Mapping[str, Floats]
    judged: Ints
    logged: Mapping[int, dict[str, float | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ranks)

    @overload
    def __getitem__(self, index: int) -> RankRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankRow, ...]: ...
    def __getitem__(self, index: int | slice) -> RankRow | tuple[RankRow, ...]:
        chosen = range(len(self))[index]
        if isinstance(chosen, range):
            return tuple(RankRow(**row) for row in self._plain(chosen))
        return RankRow(**self._plain(range(chosen, chosen + 1))[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[RankRow]:
        return (RankRow(**row) for row in self.plain())

    def plain(self) -> list[dict[str, Any]]:
        """A row each in the order of :class:`RankRow`'s fields; what is no number, or no finite one, is ``None``."""
        return self._plain(range(len(self)))

    def _plain(self, places: range) -> list[dict[str, Any]]:
        """The rows of these places only."""
        held = np.array(places, np.int64)
        ranks = self.ranks[held].tolist()
        phases: list[Any] = [self.logged.get(rank, {}) for rank in ranks]
        if self.phases:
            known = [(at, self._judged_at[place]) for at, place in enumerate(places) if place in self._judged_at]
            of = np.array([row for _, row in known], np.int64)
            measured = by_row({name: values[of] for name, values in self.phases.items()})
            for (at, _), row in zip(known, measured, strict=True):
                phases[at] = row
        texts = {name: [values[place] for place in places] for name, values in self.texts.items()}
        figures = {name: _finite(values[held]) for name, values in self.figures.items()}
        columns = {"rank": ranks, **texts, "phases_ms": phases, **figures}
        unknown: list[None] = [None] * len(places)
        fields = {one.name: columns.get(one.name, unknown) for one in dataclasses.fields(RankRow)}
        return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]

    @cached_property
    def _judged_at(self) -> dict[int, int]:
        """Which of the [M] rows of ``phases`` is of which place."""
        return {place: row for row, place in enumerate(self.judged.tolist())}


def by_row(columns: Mapping[str, Floats]) -> list[dict[str, float | None]]:
    """What columns [N] say of each of the N, by their names; ``None`` where that is no finite number."""
    listed = [_finite(values) for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*listed, strict=True)]


def _finite(values: Floats) -> list[float | None]:
    finite = np.isfinite(values)
    if finite.all():
        return list(values.tolist())
    return [one if known else None for one, known in zip(values.tolist(), finite.tolist(), strict=True)]
