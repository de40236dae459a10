"""A real API server takes the chart, gives its accounts the rights they need and no other, and shows verdicts."""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hindmost_collector.ingest.definitions import Pod
from hindmost_collector.live.kubernetes import ANNOTATION, Kubernetes
from hindmost_collector.live.notification import Notification

from tests.kubernetes.api_server import ADMIN, ApiServer, api_server
from tests.kubernetes.charts import CHART, ROOT, VALUES, helm, of_kind, render

pytestmark = pytest.mark.kubernetes

CORE = "/api/v1/namespaces"
EXAMPLES = sorted((ROOT / "deploy" / "kubernetes" / "examples").glob("*.yaml"))
#: Where objects of a kind are.
PATHS = {
    "StatefulSet": "statefulsets",
    "Deployment": "deployments",
    "DaemonSet": "daemonsets",
    "NetworkPolicy": "networkpolicies",
}
#: Kinds that the chart makes where these operators are; here without their schemas.
OPERATORS = {
    "monitoring.coreos.com": ("ServiceMonitor", "PodMonitor", "PrometheusRule"),
    "cert-manager.io": ("Certificate",),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("kubernetes")) as served:
        for group, kinds in OPERATORS.items():
            for kind in kinds:
                served.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(group, kind))
        for namespace in ("team-a", "team-b"):
            served.create(CORE, {"metadata": {"name": namespace}})
        yield served


def definition(group: str, kind: str) -> dict[str, Any]:
    """That this kind exists, and may have any field; of two groups of rules with one name the operator's takes none."""
    plural = f"{kind.lower()}s"
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    group_of_rules = {**anything, "required": ["name"], "properties": {"name": {"type": "string"}}}
    by_name = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    rules = {**anything, "properties": {"groups": {"type": "array", "items": group_of_rules, **by_name}}}
    spec_of = rules if kind == "PrometheusRule" else anything
    schema = {"openAPIV3Schema": {**anything, "properties": {"spec": spec_of}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": group, "names": names, "scope": "Namespaced", "versions": [version]}
    return {"metadata": {"name": f"{plural}.{group}"}, "spec": spec}


@pytest.fixture
def helms(server: ApiServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Helm, as an administrator, in a namespace of this test."""
    helm.disable_logging()
    logging.getLogger("helm_python").setLevel(logging.WARNING)
    namespace = f"ns-{abs(hash(request.node.name)) % 10**6}"
    known = {"kube_apiserver": server.url, "kube_token": ADMIN, "kube_ca_file": str(server.authority)}
    config = {"apiVersion": "v1", "kind": "Config"}
    with helm.Config(kubeconfig_content=yaml.safe_dump(config), namespace=namespace, **known) as made:
        made.namespace = namespace
        yield made


@pytest.mark.parametrize("values", VALUES)
def test_it_is_installed_and_upgraded(server: ApiServer, helms: Any, values: str) -> None:
    """Every object of every values file is taken; an upgrade keeps secrets that Helm made, and the volumes."""
    release = helms.install(str(CHART), "hindmost", VALUES[values], namespace=helms.namespace, create_namespace=True)
    assert release["status"] == "deployed"
    before = secrets(server, helms.namespace)
    release = helms.upgrade(str(CHART), "hindmost", {**VALUES[values], "relay": {"replicas": 3}})
    assert (release["status"], release["revision"]) == ("deployed", 2)
    assert secrets(server, helms.namespace) == before
    assert ("hindmost-token" in before) == (values != "lab")
    kept = server.get(f"/apis/apps/v1/namespaces/{helms.namespace}/deployments/hindmost-relay")
    assert kept["spec"]["replicas"] == 3
    helms.uninstall("hindmost")


def secrets(server: ApiServer, namespace: str) -> dict[str, dict[str, str]]:
    """Secrets there but Helm's own, by name."""
    found = server.get(f"{CORE}/{namespace}/secrets")["items"]
    return {one["metadata"]["name"]: one["data"] for one in found if one["type"] != "helm.sh/release.v1"}


def test_the_secret_that_helm_makes_is_one_that_hindmost_takes(server: ApiServer, helms: Any, tmp_path: Path) -> None:
    """Long enough, and the certificate is of the authority that comes with it."""
    from hindmost.credentials import Client, secrets_of

    helms.install(str(CHART), "hindmost", {}, namespace=helms.namespace, create_namespace=True)
    for secret, names in {"hindmost-token": ("secret",), "hindmost-tls": ("ca.crt", "tls.crt", "tls.key")}.items():
        data = server.get(f"{CORE}/{helms.namespace}/secrets/{secret}")["data"]
        for name in names:
            (tmp_path / name).write_bytes(base64.b64decode(data[name]))
            (tmp_path / name).chmod(0o600)
    assert len(secrets_of(str(tmp_path / "secret"))[0]) == 43
    files = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
    assert Client.of({name: str(tmp_path / file) for name, file in files.items()}, {}).encrypts
    helms.uninstall("hindmost")


def test_the_server_knows_every_field(server: ApiServer) -> None:
    """Applied by the server itself, which refuses a field that its schema has not."""
    server.ask("POST", CORE, {"metadata": {"name": "fields"}})
    for values in VALUES.values():
        for name, one in of_kind(render(values, "fields"), *PATHS).items():
            path = f"/apis/{one['apiVersion']}/namespaces/fields/{PATHS[one['kind']]}"
            status, answer = server.ask("APPLY", f"{path}/{name}?fieldManager=tests&force=true", one)
            assert status in {200, 201}, answer


def test_accounts_may_do_what_they_need_and_nothing_else(server: ApiServer, helms: Any) -> None:
    """Of all accounts the collector's may write Events, and annotate pods, of the namespaces that were named."""
    values = {"events": {"namespaces": ["team-a"], "annotations": True}, "relay": {"replicas": 1}}
    helms.install(str(CHART), "hindmost", values, namespace=helms.namespace, create_namespace=True)
    collector, agent, relay = (f"{helms.namespace}:hindmost-{name}" for name in ("collector", "agent", "relay"))
    rights = [("create", "events", ""), ("patch", "events", ""), ("patch", "pods", "status")]
    for account, namespace in ((collector, "team-a"), (collector, "team-b"), (agent, "team-a"), (relay, "team-a")):
        given = [server.permits(account, namespace, *right) for right in rights]
        assert given == [(account, namespace) == (collector, "team-a")] * 3
    others = [("patch", "pods", ""), ("get", "pods", ""), ("list", "events", ""), ("get", "secrets", "")]
    for right in others:
        assert not server.permits(collector, "team-a", *right)
        assert not server.permits(collector, helms.namespace, *right)
    helms.uninstall("hindmost")
    assert not server.permits(collector, "team-a", "create", "events")


def test_a_verdict_is_seen_with_kubectl(server: ApiServer, helms: Any, tmp_path: Path) -> None:
    """With the rights that the chart gives: an Event that follows the verdict, an annotation while it is open."""
    values = {"events": {"namespaces": ["team-a"], "annotations": True}}
    helms.install(str(CHART), "hindmost", values, namespace=helms.namespace, create_namespace=True)
    account = f"{CORE}/{helms.namespace}/serviceaccounts/hindmost-collector/token"
    token = server.create(account, {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}})
    (tmp_path / "token").write_text(token["status"]["token"])
    (tmp_path / "ca.crt").write_bytes(server.authority.read_bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    writer = Kubernetes("annotations", environ, tmp_path, pause=lambda _: None)
    pods = {team: a_pod(server, team) for team in ("team-a", "team-b")}

    assert writer.send(notification("opened", pods["team-a"], 3.9)).taken
    assert writer.send(notification("changed", pods["team-a"], 5.9)).taken
    (event,) = server.get(f"{CORE}/team-a/events")["items"]
    assert event["involvedObject"]["uid"] == pods["team-a"].uid
    assert "costs 5.9 of" in event["message"]
    pod = server.get(f"{CORE}/team-a/pods/train-2")
    assert "costs 5.9 of" in pod["metadata"]["annotations"][ANNOTATION]
    assert writer.send(notification("closed", pods["team-a"], 5.9)).taken
    assert ANNOTATION not in server.get(f"{CORE}/team-a/pods/train-2")["metadata"].get("annotations", {})
    assert server.get(f"{CORE}/team-a/events")["items"][0]["reason"] == "VerdictClosed"

    refused = writer.send(notification("opened", pods["team-b"], 3.9))
    assert (refused.status, refused.temporary) == (403, False)
    another = pods["team-a"]._replace(uid="00000000-0000-0000-0000-000000000000")
    assert writer.send(notification("opened", another, 3.9)).taken
    assert ANNOTATION not in server.get(f"{CORE}/team-a/pods/train-2")["metadata"].get("annotations", {})
    helms.uninstall("hindmost")


def a_pod(server: ApiServer, namespace: str) -> Pod:
    """A training pod there."""
    spec = {"containers": [{"name": "train", "image": "train"}]}
    made = server.create(f"{CORE}/{namespace}/pods", {"metadata": {"name": "train-2"}, "spec": spec})
    return Pod(namespace, "train-2", made["metadata"]["uid"], "Job/train")


def notification(event: str, pod: Pod, cost: float) -> Notification:
    verdict = {"kind": "straggler", "ranks": [2], "victims": [], "cause": "compute", "confidence": 0.99, "evidence": []}
    known = {**verdict, "since_step": 40, "cost_ms_per_step": cost, "cost_ratio": cost / 10}
    about = {"event": event, "id": "1", "time_ns": 1_700_000_000 * 10**9, "verdict": known}
    return Notification.of("train", about, {"ranks": [{"rank": 2, "node": "n0"}]}, {2: pod})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_pods_of_an_example_are_pods(server: ApiServer, path: Path) -> None:
    """Operators make pods of these templates; the server takes each as it is."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    trainer = content["spec"].get("trainer", {})  # a TrainJob's containers are of its runtime and its trainer
    of_trainer = {field: trainer[field] for field in ("image", "command", "env") if field in trainer}
    templates = list(_templates(content))
    assert templates
    for at, template in enumerate(templates):
        containers = [{**of_trainer, **container} for container in template["spec"]["containers"]]
        pod = {"metadata": {"name": f"{path.stem}-{at}", **template.get("metadata", {})}}
        pod["spec"] = {**template["spec"], "containers": containers}
        status, answer = server.ask("POST", f"{CORE}/team-b/pods?dryRun=All", pod)
        assert status == 201, answer


def _templates(content: Any) -> Iterator[dict[str, Any]]:
    """Whatever has containers."""
    if isinstance(content, dict):
        spec = content.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            yield content
        else:
            for one in content.values():
                yield from _templates(one)
    elif isinstance(content, list):
        for one in content:
            yield from _templates(one)
