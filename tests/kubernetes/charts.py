"""The chart, rendered by Helm's own engine."""

from pathlib import Path
from typing import Any

import pytest
import yaml

helm: Any = pytest.importorskip("helm_python", reason="needs Helm's engine: make test-kubernetes")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "hindmost"
#: What an operator would install with: the chart's defaults, and its files of values.
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    **{
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "deploy" / "helm" / "values").glob("*.yaml"))
    },
}

Object = dict[str, Any]


def render(values: dict[str, Any], namespace: str = "hindmost") -> list[Object]:
    """All objects of a release called `hindmost`, as `helm template` has them."""
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="hindmost", namespace=namespace)
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def of_kind(objects: list[Object], *kinds: str) -> dict[str, Object]:
    """Objects of these kinds by name."""
    return {one["metadata"]["name"]: one for one in objects if one["kind"] in kinds}


def pods(objects: list[Object]) -> dict[str, Object]:
    """Specifications of pods by the name of what makes them."""
    made = of_kind(objects, "StatefulSet", "Deployment", "DaemonSet")
    return {name: one["spec"]["template"]["spec"] for name, one in made.items()}
