"""How many files a service may have open at one time."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

#: More open files than any node or collector needs, and few enough to close one by one before a child is run.
MOST_FILES = 65536


def allow_files() -> None:
    """Raise the soft limit as far as that is free: samplers keep their files open, and each agent is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays %d: %s", soft, error)
