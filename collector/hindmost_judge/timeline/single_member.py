"""Collectives of communicators in which a single rank was seen: no rank waits there, and they compare no ranks.

Libraries create groups of one wherever a job does not split that way (a tensor group of one GPU, ``MPI_COMM_SELF``).
Counted as meetings, they would end one rank's self time where no other rank's ends, and hide its delay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import constant, dictionary_encoding
from hindmost_judge.timeline import nonblocking

if TYPE_CHECKING:
    from hindmost_judge.model import Table


def set_aside(table: Table) -> Table:
    """The table without them; unchanged where no communicator has several ranks.

    What was measured of the time before one of them counts to the rank's next collective.
    """
    comm, _ = dictionary_encoding.factorize(table["comm"])
    one = np.zeros(comm.max() + 1, np.int64)
    one[comm] = table["rank"]
    met = np.zeros(len(one), bool)
    met[comm[table["rank"] != one[comm]]] = True
    if met.all() or not met.any():
        return table
    stays = met[comm]
    return constant.chosen(nonblocking.with_before(table, stays, nonblocking.OWN), stays)
