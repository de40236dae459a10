"""Every metric is declared once, and docs/metrics.md says all that is declared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hindmost_agent import documentation, samplers

PAGE = Path(__file__).resolve().parents[2] / "docs/metrics.md"


def test_the_page_is_fresh() -> None:
    """Renew it with ``python -m hindmost_agent.documentation > docs/metrics.md``."""
    assert PAGE.read_text() == documentation.page()


def test_a_metric_belongs_to_one_sampler() -> None:
    """Two sources of one name would be two values of one series."""
    names = Counter(metric.name for sampler in samplers.load().values() for metric in dict.fromkeys(sampler.metrics))
    # The two readers of NVIDIA's and AMD's cards share what any GPU tells: a card is read by one of them.
    shared = {name for name, count in names.items() if count > 1 and not name.startswith("hindmost_gpu_")}
    assert not shared


def test_every_sampler_says_what_it_is() -> None:
    """File, name and registry agree; period, source and docstring are there."""
    for name, sampler in samplers.load().items():
        assert sampler.__module__ == f"hindmost_agent.samplers.{name}"
        assert sampler.source
        assert sampler.period >= 0
        assert (sampler.__doc__ or "").strip().endswith(".")
        assert sampler.metrics
