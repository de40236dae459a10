"""Writes verdicts where a user of Kubernetes looks: as Events of the pods that they name, and as their annotations.

It speaks with the API server as the pod's service account. Nothing here is asked, only written, and in a bounded rate.
Names of Events come from the verdict, so a request that is tried again writes the same one.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost.errors import UsageError, one_line

from hindmost_collector.http_client import Answer, Receiver

if TYPE_CHECKING:
    from hindmost_collector.ingest.definitions import Pod
    from hindmost_collector.live.notification import Notification

#: What ``--kubernetes`` writes; each has what the one before it has.
NOTHING, EVENTS, ANNOTATIONS = LEVELS = ("none", "events", "annotations")
#: Where Kubernetes puts a pod's proof of who it is.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANNOTATION = "hindmost/verdict"
#: Pods that get one verdict, characters of an Event's message, and pods whose open verdicts are known.
PODS, LONGEST, MOST_PODS = 8, 1024, 4096
#: Seconds between two requests, for one, and for all of one verdict.
PACE_S, ATTEMPT_S, SEND_S = 0.2, 10.0, 20.0
CONFLICT = 409
#: There is no such pod, or another one of that name: by the uid, of which servers say either.
GONE = {404, CONFLICT, 422}
#: NAMESPACE/NAME: a job says them, and they become part of a path.
_NAMES = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]*")


class Kubernetes:
    """A destination of notifications. Raises UsageError outside of a pod, or without its account."""

    name = "the API server of Kubernetes"

    def __init__(
        self,
        level: str,
        environ: Mapping[str, str] = os.environ,
        account: Path = ACCOUNT,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise UsageError(f"--kubernetes {level}: KUBERNETES_SERVICE_HOST is not set; run it in a pod")
        authority = account / "ca.crt"
        for path in (authority, account / "token"):
            if not path.is_file():
                raise UsageError(f"--kubernetes {level}: no {path}; set automountServiceAccountToken for this pod")
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}/"
        self._server = Receiver(url, "KUBERNETES_SERVICE_HOST", ATTEMPT_S, {}, "an address", str(authority))
        self._token, self._annotates, self._pause = account / "token", level == ANNOTATIONS, pause
        self._clock, self._until = clock, 0.0
        #: What each pod's annotation is made of: the newest of its open verdicts, by job and id.
        self._open: dict[Pod, dict[tuple[str, str], str]] = {}

    def send(self, one: Notification) -> Answer:
        """Write it for each pod, all in ``SEND_S``. What fails for good does not keep the others from being written."""
        self._until = self._clock() + SEND_S
        if one.ended:
            self._forget(one.job)
        pods = [pod for pod in dict.fromkeys(one.pods) if _is_named(pod)]
        answers = [answer for pod in pods[:PODS] for answer in self._written(one, pod)]
        failed = [answer for answer in answers if not answer.taken]
        return next((answer for answer in failed if answer.temporary), (failed or [Answer(200, "")])[0])

    def _written(self, one: Notification, pod: Pod) -> Iterable[Answer]:
        yield self._event(one, pod)
        if self._annotates and pod.name and pod.uid:
            yield self._annotation(one, pod)

    def _event(self, one: Notification, pod: Pod) -> Answer:
        event = event_of(one, pod)
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        answer = self._request("POST", path, event)
        if answer.status != CONFLICT:
            return answer
        changes = {name: event[name] for name in ("reason", "message", "type", "lastTimestamp")}
        return self._request("PATCH", f"{path}/{event['metadata']['name']}", changes)

    def _annotation(self, one: Notification, pod: Pod) -> Answer:
        verdicts = self._open.pop(pod, {})
        verdicts.pop((one.job, one.id), None)
        if one.event != "closed":
            verdicts[one.job, one.id] = one.text[:LONGEST]
        shown = next(reversed(verdicts.values()), None)
        if shown is not None:
            self._open[pod] = verdicts
            if len(self._open) > MOST_PODS:
                del self._open[next(iter(self._open))]
        # With another uid it is another pod, and the server refuses.
        change = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION: shown}}}
        answer = self._request("PATCH", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status", change)
        if answer.status in GONE:
            self._open.pop(pod, None)
            return Answer(200, "it has ended")
        return answer

    def _forget(self, job: str) -> None:
        """Drop the verdicts of a job that is over: the end of one may have been dropped on its way here."""
        for pod, verdicts in list(self._open.items()):
            self._open[pod] = {known: text for known, text in verdicts.items() if known[0] != job}
            if not self._open[pod]:
                del self._open[pod]

    def _request(self, method: str, path: str, content: Mapping[str, Any]) -> Answer:
        self._pause(PACE_S)
        left = self._until - self._clock()
        if left <= 0:
            return Answer(0, f"not all was written in {SEND_S:g} s")
        try:
            token = self._token.read_text(encoding="ascii").strip()  # it is renewed every hour
        except (OSError, ValueError) as error:
            return Answer(0, f"{self._token}: {error}")
        kind = "application/json" if method == "POST" else "application/merge-patch+json"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        return self._server.request(method, path, json.dumps(content).encode(), headers, left)


def event_of(one: Notification, pod: Pod) -> dict[str, Any]:
    """The Event of a verdict: of the pod, or, where its name is not known, of what made it."""
    about = _about(pod)
    identity = "\0".join((one.job, one.id, *about.values()))
    at = datetime.fromtimestamp(one.time_ns // 1_000_000_000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    over = one.event == "closed"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"hindmost.{blake2b(identity.encode(), digest_size=12).hexdigest()}",
            "namespace": pod.namespace,
        },
        "involvedObject": {"namespace": pod.namespace, **about},
        "reason": "VerdictClosed" if over else _reason(one.verdict["kind"]),
        "message": f"job {one_line(one.job)}: {one.text}"[:LONGEST],
        "type": "Normal" if over else "Warning",
        "source": {"component": "hindmost"},
        "firstTimestamp": at,
        "lastTimestamp": at,
    }


def _about(pod: Pod) -> dict[str, str]:
    """The object of an Event."""
    if pod.name:
        return {"apiVersion": "v1", "kind": "Pod", "name": pod.name} | ({"uid": pod.uid} if pod.uid else {})
    kind, _, name = pod.workload.partition("/")
    return {"kind": kind, "name": name}


def _is_named(pod: Pod) -> bool:
    """Whether the names that a job gave can be those of an object of Kubernetes."""
    about = _about(pod)
    return bool(_NAMES.fullmatch(f"{pod.namespace}/{about['name']}") and _KIND.fullmatch(about["kind"]))


def _reason(kind: str) -> str:
    """A verdict's kind as Kubernetes writes reasons: ``slow_node`` is ``SlowNode``."""
    return "".join(word.capitalize() for word in kind.replace("-", "_").split("_"))
