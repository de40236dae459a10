"""The Helm chart: what it installs for each of the values files that come with it."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hindmost_cli import agent, collector

from tests.kubernetes.charts import CHART, ROOT, VALUES, Object, helm, of_kind, pods, render
from tests.needs import need

pytestmark = pytest.mark.kubernetes

#: Kinds of other projects' operators, whose schemas are theirs.
FOREIGN = ("monitoring.coreos.com/v1", "cert-manager.io/v1")


@pytest.fixture(scope="module", params=VALUES)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """What one of the values files installs."""
    return render(VALUES[request.param])


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return render({})


def test_kubernetes_knows_every_field(objects: list[Object]) -> None:
    """Each object of Kubernetes' own kinds fits the API's schema, with no field that the API does not know."""
    validator = pytest.importorskip("kubernetes_validate")
    own = [one for one in objects if one["apiVersion"] not in FOREIGN]
    assert own
    for one in own:
        validator.validate(one, "1.34", strict=True)


@pytest.mark.parametrize("values", VALUES)
def test_helm_has_no_complaint(values: str) -> None:
    """`helm lint --strict` finds neither errors nor warnings."""
    report = helm.lint(str(CHART), VALUES[values], strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_all_is_in_the_namespace_of_the_release_or_of_a_team(objects: list[Object]) -> None:
    """Nothing is of the whole cluster, so installing needs no rights beyond namespaces."""
    assert {one["metadata"]["namespace"] for one in objects} <= {"hindmost", "team-a"}


def test_hindmost_understands_its_options(objects: list[Object]) -> None:
    """The programs' own parsers take each container's arguments."""
    for pod in pods(objects).values():
        command, *words = pod["containers"][0]["args"]
        parser = argparse.ArgumentParser(exit_on_error=False)
        {"agent": agent, "collector": collector}[command].configure(parser)
        parser.parse_args(words)


def test_only_the_agent_is_root_and_may_read_others(objects: list[Object]) -> None:
    """Root without all but two capabilities; everything else runs without rights, and no file system can be written."""
    for name, pod in pods(objects).items():
        context = pod["containers"][0]["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False, "HINDMOST_COLLECTOR_* would be taken for settings"
        if name == "hindmost-agent":
            assert context["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH", "SYS_PTRACE"]}
        else:
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert pod["securityContext"]["runAsNonRoot"]
            assert not {"hostPID", "hostNetwork", "hostIPC"} & pod.keys()
            assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_no_port_leaves_the_cluster(objects: list[Object]) -> None:
    """Services are cluster-internal; no container has a port of its node, and agents open none at all."""
    assert {one["spec"]["type"] for one in of_kind(objects, "Service").values()} == {"ClusterIP"}
    ports = {name: pod["containers"][0].get("ports", []) for name, pod in pods(objects).items()}
    assert [port for found in ports.values() for port in found if "hostPort" in port] == []
    assert ports["hindmost-agent"] == []
    assert not any(word.startswith("--listen") for word in pods(objects)["hindmost-agent"]["containers"][0]["args"])


def test_tls_and_a_token_are_the_default(defaults: list[Object]) -> None:
    """Who has neither gets in nowhere, and the agent has the authority, and not the key."""
    found = pods(defaults)
    for name in ("hindmost-agent", "hindmost-collector"):
        words = found[name]["containers"][0]["args"]
        assert "--token-file=/etc/hindmost/token/secret" in words
        assert "--insecure" not in words
    assert "--tls-ca=/etc/hindmost/tls/ca.crt" in found["hindmost-agent"]["containers"][0]["args"]
    mounted = {volume["name"]: volume for volume in found["hindmost-agent"]["volumes"]}
    assert mounted["tls"]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


def test_the_certificate_has_every_name_that_is_connected_to() -> None:
    """Agents, relays and Prometheus each find the name that they ask for in the certificate."""
    objects = render(VALUES["scale-out"])
    made = render({"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "a"}}}})
    names = of_kind(made, "Certificate")["hindmost-tls"]["spec"]["dnsNames"]
    words = [word for pod in pods(objects).values() for word in pod["containers"][0]["args"]]
    options = [word.partition("=")[2] for word in words if word.startswith(("--collector=", "--relay-to="))]
    asked = [one for option in options for one in option.split(",")]
    for monitor in of_kind(objects, "ServiceMonitor").values():
        asked += [end["tlsConfig"]["serverName"] for end in monitor["spec"]["endpoints"]]
    hosts = {one.partition(":")[0] for one in asked}
    assert len(hosts) == 4
    for host in hosts:
        assert host in names or f"*.{host.partition('.')[2]}" in names


def test_no_account_has_a_right_by_default(defaults: list[Object]) -> None:
    """Nothing of it talks to the API server, nor could it."""
    assert of_kind(defaults, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding") == {}
    assert [pod["automountServiceAccountToken"] for pod in pods(defaults).values()] == [False, False]


def test_events_need_two_rights_in_the_named_namespaces() -> None:
    """To write Events; and for annotations to patch a pod's status, which has no containers."""
    rule = {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}
    plain = [one for one in render({"events": {"namespaces": ["a", "b"]}}) if one["kind"] == "Role"]
    assert [(one["metadata"]["namespace"], one["rules"]) for one in plain] == [("a", [rule]), ("b", [rule])]
    roles = [one for one in render({"events": {"namespaces": ["a"], "annotations": True}}) if one["kind"] == "Role"]
    assert [rule["resources"] for rule in roles[0]["rules"]] == [["events"], ["pods/status"]]


@pytest.mark.parametrize("values", ["monitoring", "scale-out", "lab"])
def test_monitors_follow_tls(values: str) -> None:
    """A scrape speaks what the port speaks, brings the token, and leaves the labels as they are."""
    objects = render({**VALUES[values], "monitoring": {"enabled": True}})
    monitors = of_kind(objects, "ServiceMonitor", "PodMonitor")
    assert len(monitors) == (2 if values == "scale-out" else 1)
    secured = VALUES[values].get("tls", {}).get("enabled", True)
    for one in monitors.values():
        (end,) = one["spec"].get("endpoints") or one["spec"]["podMetricsEndpoints"]
        assert end["honorLabels"]
        assert end["scheme"] == ("https" if secured else "http")
        assert ("authorization" in end) == ("tlsConfig" in end) == secured


def test_boards_and_rules_are_those_of_the_tree() -> None:
    """Byte by byte, and each in a ConfigMap that Kubernetes can store."""
    objects = render(VALUES["monitoring"])
    kept = {name: text for one in of_kind(objects, "ConfigMap").values() for name, text in one["data"].items()}
    boards = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in kept.items() if name.endswith(".json")} == boards
    for name in ("alerts", "recording"):
        rules = yaml.safe_load((ROOT / "dashboards" / f"{name}.yml").read_text(encoding="utf-8"))
        assert of_kind(objects, "PrometheusRule")[f"hindmost-{name}"]["spec"] == rules


@pytest.mark.parametrize(
    "values",
    [
        {"collectors": {}},
        {"collector": {"replicas": 2}},
        {"agent": {"spoolSize": "256M"}},
        {"tls": {"certManager": {"enabled": True}}},
        {"networkPolicy": {"enabled": "yes"}},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    """A typing error, several collectors without relays, a size that hindmost does not know, no issuer, no boolean."""
    with helm.Chart.load(str(CHART)) as chart, pytest.raises(helm.HelmError):
        chart.validate_schema(chart.merge_values(values))


def test_a_package_has_the_boards(tmp_path: Path) -> None:
    """`helm package` follows the link to them, and leaves their sources out."""
    archive = helm.package(str(CHART), destination=str(tmp_path))
    with helm.Chart.load(str(archive)) as chart:
        files = {one["name"] for one in chart.files}
    assert {f"dashboards/{path.name}" for path in (ROOT / "dashboards").glob("*.json")} < files
    assert not [name for name in files if name.endswith(".py")]


@pytest.mark.parametrize("wanted", ["monitoring", "dashboards"])
def test_a_copy_without_the_boards_says_so(tmp_path: Path, wanted: str) -> None:
    """An archive may leave links out; an operator who asks for boards or rules must not get none in silence."""
    copy = shutil.copytree(CHART, tmp_path / "hindmost", symlinks=True, ignore=shutil.ignore_patterns("dashboards"))
    with helm.Chart.load(str(copy)) as chart, pytest.raises(helm.HelmError, match="lacks dashboards"):
        chart.render({wanted: {"enabled": True}}, name="hindmost", namespace="hindmost")


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
