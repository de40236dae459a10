"""Sources of node metrics, a self-registering file for each source; a new file here is a new source."""

import importlib
import pkgutil

from hindmost_agent.sampler import REGISTRY, Sampler


def load() -> dict[str, type[Sampler]]:
    """Import every module of this folder; return all samplers by name, sorted."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(REGISTRY.items()))
