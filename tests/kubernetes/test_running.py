"""What the chart starts, started here: collector, relay and agent with its arguments, secrets and files."""

import base64
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import hindmost.inject
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kubernetes.charts import of_kind, pods, render
from tests.servers import free_port

pytestmark = pytest.mark.kubernetes

#: Seconds until the agent's first samples have come to the collector through the relay.
PATIENCE_S = 60.0
JOB = "team-a.train"
#: What the template of a training pod sets: deploy/kubernetes/examples.
OF_A_POD = {
    "HINDMOST_JOB_ID": JOB,
    "HINDMOST_LAUNCHER": "torchrun",
    "HINDMOST_WORKLOAD": "PyTorchJob/train",
    "HINDMOST_QUEUE": "gold",
    "HINDMOST_POD_NAMESPACE": "team-a",
    "RANK": "0",
    "WORLD_SIZE": "1",
}


class Release:
    """Its programs as processes of this machine, each with free ports, its files below ``folder``."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.objects = render({"relay": {"replicas": 1}})
        self.ports = {name: (free_port(), free_port()) for name in ("hindmost-collector", "hindmost-relay")}
        for name in self.ports:
            self._mount(name)

    def _mount(self, name: str) -> None:
        """The files of Secrets and ConfigMaps, as the kubelet would write them: of root, readable for a group."""
        contents = of_kind(self.objects, "Secret", "ConfigMap")
        for volume in pods(self.objects)[name]["volumes"]:
            source = volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name")
            mode = 0o440 if os.geteuid() == 0 else 0o400
            for file, text in contents[source]["data"].items() if source else ():
                path = self.folder / "etc/hindmost" / volume["name"] / file
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    plain = base64.b64decode(text).decode() if "secret" in volume else text
                    path.write_text(self._placed(plain))
                    path.chmod(mode)

    def _placed(self, word: str) -> str:
        for place in ("/etc/hindmost", "/var/lib/hindmost"):
            word = word.replace(place, f"{self.folder}{place}")
        return word

    def arguments(self, name: str) -> list[str]:
        """The arguments of its container, with ports and addresses of this machine."""
        found = []
        for word in pods(self.objects)[name]["containers"][0]["args"]:
            option, _, value = word.partition("=")
            if option in {"--listen", "--http"}:
                value = f"{value.partition(':')[0]}:{self.ports[name][option == '--http']}"  # as open as in a pod
            elif option in {"--relay-to", "--collector"}:
                known = next(one for one in self.ports if value.startswith(one))
                value = f"127.0.0.1:{self.ports[known][0]}"
            found.append(self._placed(f"{option}={value}" if value else option))
        return found

    def start(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        """Start one; it ends with the test."""
        log = self._stack.enter_context((self.folder / f"{name}.log").open("wb"))
        container = pods(self.objects)[name]["containers"][0]
        environ = {one["name"]: self._placed(one["value"]) for one in container.get("env", [])}
        words = [sys.executable, "-m", "hindmost", *self.arguments(name), *more]
        return self.run(words, {**os.environ, **environ}, log)

    def run(self, words: list[str], environ: dict[str, str], log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
        """Start a process; it ends with the test."""
        process = subprocess.Popen(words, env=environ, stdout=log, stderr=subprocess.STDOUT)
        self._stack.callback(process.wait, 30)
        self._stack.callback(process.terminate)
        return process

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        """What Prometheus gets from the collector, over TLS of the chart's authority."""
        url = f"https://localhost:{self.ports['hindmost-collector'][1]}{path}"
        context = ssl.create_default_context(cafile=str(self.folder / "etc/hindmost/tls/ca.crt"))
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    @property
    def logs(self) -> str:
        """What all of them said."""
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """All three running, and a rank of a training pod on the agent's node."""
    with ExitStack() as stack:
        made = Release(tmp_path_factory.mktemp("release"), stack)
        rings = made.folder / "rings"
        rings.mkdir(mode=0o700)
        probe = os.pathsep.join([str(Path(hindmost.inject.__path__[0])), os.environ.get("PYTHONPATH", "")])
        rank = [sys.executable, "-c", "import time; time.sleep(600)"]
        made.run(rank, {**os.environ, **OF_A_POD, "HINDMOST_RING_DIR": str(rings), "PYTHONPATH": probe})
        for name in ("hindmost-collector", "hindmost-relay"):
            made.start(name)
        # Of this machine this one job alone: others run here, too.
        made.start("hindmost-agent", f"--job-id={JOB}", f"--ring-dir={rings}")
        yield made


def until(look: Callable[[], Any]) -> Any:
    """What is seen once there is something to see."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        with suppress(OSError):  # it does not listen yet
            if found := look():
                return found
        time.sleep(0.2)
    return None


def workloads(release: Release) -> list[dict[str, str]]:
    """Labels of the series that Prometheus gets with the chart's token."""
    token = (release.folder / "etc/hindmost/token/secret").read_text()
    status, page = release.get("/metrics", token)
    assert status == 200
    series = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return [one.labels for one in series if one.name == "hindmost_job_workload_info"]


def test_a_pods_rank_comes_through_relay_to_collector_with_tls_and_token(release: Release) -> None:
    """Nothing but what the chart gives them; and Prometheus reads which workload it is, with the chart's token."""
    found = until(lambda: workloads(release))
    wanted = {"namespace": "team-a", "kind": "PyTorchJob", "workload": "train", "queue": "gold", "job_id": JOB}
    assert found == [wanted], release.logs


def test_reading_needs_the_token_and_a_probe_of_the_kubelet_does_not(release: Release) -> None:
    """The kubelet asks for readiness without credentials; metrics and jobs are not for everyone."""
    assert until(lambda: release.get("/readyz")) == (200, "ready\n"), release.logs
    assert [release.get(path)[0] for path in ("/metrics", "/api/jobs")] == [401, 401]
