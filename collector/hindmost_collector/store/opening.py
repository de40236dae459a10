"""Which store a collector's options name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import UsageError

from hindmost_collector.store import meta
from hindmost_collector.store.clickhouse.client import is_url
from hindmost_collector.store.parquet.store import ParquetStore

if TYPE_CHECKING:
    from hindmost_collector.options import Options
    from hindmost_collector.store.recording import Store


def open_store(options: Options) -> Store | None:
    """The store that the options name; None for none.

    Raises HindmostError when it cannot be had, UsageError where ``out`` has the recording of another job.
    """
    if options.out:
        job = meta.known(Path(options.out)).get("job_id")
        if job and options.job_id and job != options.job_id:
            raise UsageError(
                f"--out {options.out}: it contains job {job}, not {options.job_id}; name another directory"
            )
        return ParquetStore(Path(options.out), single=True)
    if is_url(options.store):
        from hindmost_collector.store.clickhouse.store import ClickHouseStore  # noqa: PLC0415 - where used

        return ClickHouseStore(options.store, options.retention_days)
    if options.store:
        return ParquetStore(Path(options.store.removeprefix("file://")), single=False)
    return None
