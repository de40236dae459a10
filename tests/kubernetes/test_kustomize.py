"""The kustomizations, built by kubectl itself: they render the chart, so there is nothing here that could differ."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.kubernetes.charts import ROOT, Object, of_kind, pods, render
from tests.needs import need

pytestmark = pytest.mark.kubernetes
KUSTOMIZE = ROOT / "deploy" / "kubernetes"


def built(folder: str, tmp_path: Path) -> list[Object]:
    """What `kubectl kustomize` makes of a folder."""
    need("kubectl")
    helm = tmp_path / "helm"
    helm.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("helm")} "$@"\n')
    helm.chmod(0o755)
    command = ["kubectl", "kustomize", "--enable-helm", f"--helm-command={helm}", str(KUSTOMIZE / folder)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_the_base_is_the_chart_with_secrets_of_ones_own(tmp_path: Path) -> None:
    """All objects of the chart, and no secret that each rendering would make anew."""
    found = built("base", tmp_path)
    chart = render({"tls": {"secretName": "hindmost-tls"}, "token": {"secretName": "hindmost-token"}})
    wanted = {(one["kind"], one["metadata"]["name"]) for one in chart} | {("Namespace", "hindmost")}
    assert {(one["kind"], one["metadata"]["name"]) for one in found} == wanted
    assert of_kind(found, "Secret") == {}
    assert pods(found) == pods(chart)


def test_an_overlay_keeps_agents_to_gpu_nodes(tmp_path: Path) -> None:
    """It says the same as the values file of that name."""
    found = pods(built("overlays/gpu-nodes", tmp_path))["hindmost-agent"]
    values = yaml.safe_load((ROOT / "deploy/helm/values/gpu-nodes.yaml").read_text(encoding="utf-8"))
    chart = pods(render({**values, "tls": {"secretName": "hindmost-tls"}, "token": {"secretName": "hindmost-token"}}))
    assert found == chart["hindmost-agent"]
