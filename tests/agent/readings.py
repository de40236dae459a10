"""What a sampler reads, by name and labels, as tests ask for it."""

from hindmost_agent.sampler import Sampler


def read(sampler: Sampler, prefix: str = "") -> dict[tuple[str, ...], float]:
    """Each value by its metric's name, less the ``prefix``, and its labels' values."""
    values = sampler.sample()
    names = ((one.metric.name.removeprefix(prefix), *one.values) for one in sampler.series)
    return dict(zip(names, values, strict=True))


def read_gpu(sampler: Sampler) -> dict[tuple[str, ...], float]:
    """The same of a GPU's metrics, without what their names all begin with."""
    return read(sampler, "hindmost_gpu_")
