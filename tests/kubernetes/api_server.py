"""A real API server: etcd and kube-apiserver on loopback, without kubelets or controllers."""

import contextlib
import json
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

#: Where `make api-server` links them.
PROGRAMS = Path(__file__).parents[2] / ".cache/kubernetes"
ADMIN = "the-token-of-the-administrator"
#: Seconds until it must be ready.
READY_S = 60.0


class ApiServer:
    """Its address, and requests as the administrator or as the owner of another token."""

    def __init__(self, port: int, folder: Path) -> None:
        self.url, self.port, self.authority = f"https://127.0.0.1:{port}", port, folder / "certificates/apiserver.crt"

    def ask(self, method: str, path: str, body: Any = None, token: str = ADMIN) -> tuple[int, Any]:
        """The status and content of an answer; APPLY is the PATCH of server-side apply."""
        kind = "application/json" if method != "APPLY" else "application/apply-patch+yaml"
        method = "PATCH" if method == "APPLY" else method
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, headers, method=method)  # noqa: S310 - https
        context = ssl.create_default_context(cafile=str(self.authority))
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:  # noqa: S310
                return answer.status, _json(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, _json(error.read())

    def get(self, path: str) -> Any:
        """What is there; fails where nothing is."""
        status, found = self.ask("GET", path)
        assert status == 200, found
        return found

    def create(self, path: str, body: Any) -> Any:
        """Make an object."""
        status, found = self.ask("POST", path, body)
        assert status in {200, 201}, found
        return found

    def permits(self, account: str, namespace: str, verb: str, resource: str, part: str = "") -> bool:
        """Whether an account, NAMESPACE:NAME, may do this there: what `kubectl auth can-i` asks."""
        what = {"namespace": namespace, "verb": verb, "resource": resource, "subresource": part}
        spec = {"user": f"system:serviceaccount:{account}", "resourceAttributes": what}
        review = {"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec}
        answer = self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace")


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """One that lives as long as the context, with all that it keeps in ``folder``."""
    for name in ("etcd", "kube-apiserver"):
        if not (PROGRAMS / name).exists():
            pytest.skip(f"needs {name}: make api-server")
    etcd, peer, port = _free(), _free(), _free()
    key = folder / "account.key"
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    (folder / "tokens").write_text(f'{ADMIN},admin,1,"system:masters"\n')
    served = ApiServer(port, folder)
    commands = (
        [PROGRAMS / "etcd", "--data-dir", folder / "etcd", "--unsafe-no-fsync"]
        + [f"--{kind}-client-urls=http://127.0.0.1:{etcd}" for kind in ("listen", "advertise")]
        + [f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}"]
        + [f"--initial-cluster=default=http://127.0.0.1:{peer}"],
        [PROGRAMS / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1"]
        + [f"--secure-port={port}", f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={folder / 'tokens'}"]
        + ["--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/24", "--advertise-address=127.0.0.1"]
        + [f"--service-account-{kind}-file={key}" for kind in ("key", "signing-key")]
        + ["--service-account-issuer=https://tests", "--disable-admission-plugins=ServiceAccount"]
        + ["--insecure-port=0"],
    )
    with contextlib.ExitStack() as stack:
        for command in commands:
            log = stack.enter_context((folder / f"{Path(command[0]).name}.log").open("w"))
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
        _until_ready(served, folder)
        yield served


def _until_ready(served: ApiServer, folder: Path) -> None:
    ends = time.monotonic() + READY_S
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            if served.ask("GET", "/readyz")[0] == 200:
                return
        time.sleep(0.2)
    pytest.fail((folder / "kube-apiserver.log").read_text()[-4000:])


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
