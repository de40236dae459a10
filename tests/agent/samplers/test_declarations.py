"""What samplers declare of themselves."""

from collections import Counter

from hindmost_agent import samplers


def test_a_metric_belongs_to_one_sampler() -> None:
    """Two sources of one name would be two values of one series."""
    names = Counter(metric.name for sampler in samplers.load().values() for metric in dict.fromkeys(sampler.metrics))
    # The two readers of NVIDIA's and AMD's cards share what any GPU tells: a card is read by one of them.
    shared = {name for name, count in names.items() if count > 1 and not name.startswith("hindmost_gpu_")}
    assert not shared


def test_every_sampler_says_what_it_is() -> None:
    """Its file has its name or that of the source it is a part of (`amd_health`: `amd.py`); the rest is declared."""
    for name, sampler in samplers.load().items():
        assert name.startswith(sampler.__module__.rpartition(".")[2])
        assert sampler.source
        assert sampler.period >= 0
        assert (sampler.__doc__ or "").strip().endswith(".")
        assert sampler.metrics
