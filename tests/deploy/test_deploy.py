"""What is in ``deploy/``, as the programs that will read it judge it, and which ports each set-up opens."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hindmost.credentials import is_loopback
from hindmost.daemon_process import MOST_FILES
from hindmost_collector.store.recorder import HANGS_S
from hindmost_proto.address import parse

from tests.needs import need
from tests.programs import shell_program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
pytestmark = pytest.mark.uses("systemd-analyze", "promtool", "amtool")

SYSTEMD = DEPLOY / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
SCRIPTS = sorted([*DEPLOY.glob("slurm/*"), *DEPLOY.glob("pbs/*")])

GUIDE = ROOT / "docs" / "how-to" / "run-a-service.md"

#: ``systemd-analyze security`` rates exposure from 0 to 10; the agent reads other users' processes and GPUs.
MOST_EXPOSED = {"hindmost-collector.service": 1.5, "hindmost-agent.service": 3.5, "hindmost-slurm.service": 1.5}
#: Slurm's accounting takes changes of its operators only.
USERS = {"hindmost-slurm.service": "slurm"}


def check(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program that judges a file; skip where this machine has not got it."""
    need(str(command[0]))
    words = [str(word) for word in command]
    return subprocess.run(words, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """systemd finds no unknown directive and no bad value, given an interpreter where the unit expects it."""
    program = shell_program(tmp_path / "hindmost", "")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/hindmost/bin/hindmost", str(program)))
    verified = check("systemd-analyze", "verify", "--man=no", copy)
    assert (verified.returncode, verified.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_confined_and_not_root(unit: Path) -> None:
    """Each service runs as its own user, with systemd's exposure score under the limit that its work allows."""
    assert f"User={USERS.get(unit.name, 'hindmost')}" in unit.read_text().splitlines()
    rated = check("systemd-analyze", "security", "--offline=true", unit)
    score = re.search(r"exposure level for \S+: ([\d.]+)", rated.stdout)
    assert score is not None, rated.stderr
    assert float(score[1]) <= MOST_EXPOSED[unit.name]
    assert f" {score[1]} for the {unit.stem.removeprefix('hindmost-')}" in GUIDE.read_text()


def settings_of(path: Path) -> dict[str, str]:
    """What a unit, or a file of settings, sets."""
    return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line and line[0] != "#")


def test_the_agent_may_read_what_it_samples() -> None:
    """The kernel's log, rings and /proc/PID/io of all users, and as many files as the agent asks for at most."""
    settings = settings_of(SYSTEMD / "hindmost-agent.service")
    needed = "CAP_DAC_READ_SEARCH CAP_SYS_PTRACE CAP_SYSLOG"
    assert settings["AmbientCapabilities"] == settings["CapabilityBoundingSet"] == needed
    assert int(settings["LimitNOFILE"]) == MOST_FILES


def test_the_collector_may_have_a_connection_to_every_agent() -> None:
    """Each agent is an open file, of which systemd allows 1024; and its last flush may take half a minute."""
    settings = settings_of(SYSTEMD / "hindmost-collector.service")
    assert int(settings["LimitNOFILE"]) == MOST_FILES
    assert int(settings["TimeoutStopSec"]) > 2 * HANGS_S


def compose_services() -> dict[str, dict[str, Any]]:
    """The services of the compose file by name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    return found


def test_compose_accepts_the_file() -> None:
    """Docker Compose itself resolves the whole file, build and mounts included."""
    resolved = check("docker-compose", "-f", DEPLOY / "compose" / "compose.yaml", "config", "--format", "json")
    assert resolved.returncode == 0, resolved.stderr
    services = yaml.safe_load(resolved.stdout)["services"]
    assert set(services) == {"collector", "prometheus", "alertmanager", "grafana"}


def test_every_file_that_compose_mounts_exists() -> None:
    """Docker would make an empty directory in place of a file that is missing."""
    folder, services = DEPLOY / "compose", compose_services()
    sources = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])]
    paths = [folder / source for source in sources if source.startswith(".")]
    assert paths
    assert [path for path in paths if not path.exists()] == []
    assert (folder / services["collector"]["build"]["context"] / services["collector"]["build"]["dockerfile"]).is_file()


def test_the_image_is_built_from_all_that_the_wheel_needs() -> None:
    """What the build context leaves out is nothing that pyproject.toml names."""
    ignored = (DEPLOY / "compose" / "Dockerfile.dockerignore").read_text()
    sent = {line.removeprefix("!") for line in ignored.splitlines() if line.startswith("!")}
    wheel = re.search(r"\[tool\.hatch\.build.*?(?=\n\[tool\.ruff)", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert wheel is not None
    named = {path for path in re.findall(r'"([^"]+)"', wheel[0]) if (ROOT / path).exists()}
    assert len(named) > 4
    assert {path.split("/")[0] for path in named} | {"pyproject.toml", "README.md", "LICENSE"} == sent


def test_containers_are_confined() -> None:
    """None is root, gains a right, has a capability or writes outside of its volumes."""
    for name, service in compose_services().items():
        assert service["user"].partition(":")[0].isdigit(), name
        assert not service["user"].startswith("0:"), name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_hadolint_has_nothing_to_say() -> None:
    """The image is built as its linter would have it."""
    checked = check("hadolint", "--failure-threshold=style", DEPLOY / "compose" / "Dockerfile")
    assert (checked.returncode, checked.stdout) == (0, "")


def test_prometheus_accepts_the_configuration(tmp_path: Path) -> None:
    """promtool loads the scrape configuration with both files of rules, as the compose file mounts them."""
    shutil.copy(DEPLOY / "prometheus" / "prometheus.yml", tmp_path)
    for rules in ("recording.yml", "alerts.yml"):
        shutil.copy(ROOT / "dashboards" / rules, tmp_path)
    checked = check("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alertmanager_accepts_the_routes() -> None:
    """amtool loads the routes, and takes each alert to the receiver that it is meant for."""
    config = DEPLOY / "alertmanager" / "alertmanager.yml"
    checked = check("amtool", "check-config", config)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for alert, receiver in (("HindmostWatchdog", "heartbeat"), ("HindmostJobHangs", "people")):
        routed = check("amtool", "config", "routes", "test", f"--config.file={config}", f"alertname={alert}")
        assert routed.stdout.strip() == receiver


def test_grafana_finds_what_it_is_provisioned_with() -> None:
    """The home dashboard and the provider's folder are where the compose file mounts the dashboards."""
    grafana = compose_services()["grafana"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in grafana["volumes"])
    provider = yaml.safe_load((DEPLOY / "compose/grafana/provisioning/dashboards/hindmost.yml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert mounts[folder] == "../../dashboards"
    assert str(home.parent) == folder
    assert (ROOT / "dashboards" / home.name).is_file()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    """No unquoted variable, no forgotten error; the virtual environment's activate is not ours to check."""
    checked = check("shellcheck", "--exclude=SC1091", script)
    assert (checked.returncode, checked.stdout) == (0, "")


@pytest.mark.parametrize("works", [True, False])
def test_prolog_makes_a_token_or_says_why_not(tmp_path: Path, works: bool) -> None:
    """A failure is in the log of the node, and leaves no empty file."""
    (tmp_path / "secret").touch()
    made = "echo TOKEN" if works else "echo 'user 4711 owns it' >&2; exit 2"
    for name, line in (("hindmost", made), ("logger", f'echo "$@" >> {tmp_path}/log')):
        shell_program(tmp_path / "bin" / name, line)
    folders = {
        "HINDMOST_VENV": tmp_path,
        "HINDMOST_SECRET": tmp_path / "secret",
        "HINDMOST_TOKENS": tmp_path / "tokens",
    }
    environ = {name: str(path) for name, path in folders.items()}
    environ |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "77", "SLURM_JOB_UID": str(os.getuid())}
    subprocess.run(["bash", DEPLOY / "slurm" / "prolog.sh"], check=True, env=environ)
    token = tmp_path / "tokens" / "77"
    if works:
        assert (token.read_text(), token.stat().st_mode & 0o777) == ("TOKEN\n", 0o600)
        assert not (tmp_path / "log").exists()
    else:
        assert "job 77 gets no token: user 4711 owns it" in (tmp_path / "log").read_text()
        assert not token.exists()


def test_task_prolog_switches_the_probe_on(tmp_path: Path) -> None:
    """What the Slurm TaskProlog prints are the variables of a probe, and the path it gives holds one."""
    said = prolog(tmp_path, {"SLURM_JOB_ID": "77"})
    variables = dict(line.removeprefix("export ").split("=", 1) for line in said.splitlines())
    assert variables["HINDMOST_JOB_ID"] == "77"
    assert variables["HINDMOST_COLLECTOR"] == "collector.example.org:9460"
    assert variables["HINDMOST_RING_DIR"] == f"/dev/shm/hindmost-{os.getuid()}/77"
    assert (Path(variables["PYTHONPATH"]) / "sitecustomize.py").is_file()


def test_task_prolog_gives_the_parts_in_c_that_were_built(tmp_path: Path) -> None:
    """The newest of each kind in the cache; a user's profiler goes behind ours; without the shim Python times MPI."""
    assert "export HINDMOST_MPI=python\n" in prolog(tmp_path / "bare", {"SLURM_JOB_ID": "77"})
    built = tmp_path / "full/cache/hindmost"
    built.mkdir(parents=True)
    for age, name in enumerate(["pmpi-basic-1.so", "pmpi-basic-0.so", "nccl-1.so", "ring-abi3-1.so"]):
        (built / name).touch()
        os.utime(built / name, (1000 - age, 1000 - age))
    said = prolog(tmp_path / "full", {"SLURM_JOB_ID": "77", "LD_PRELOAD": "", "NCCL_PROFILER_PLUGIN": "mine"})
    variables = dict(line.removeprefix("export ").split("=", 1) for line in said.splitlines())
    assert variables["LD_PRELOAD"] == str(built / "pmpi-basic-1.so")
    assert variables["HINDMOST_RING_MODULE"] == str(built / "ring-abi3-1.so")
    assert Path(variables["HINDMOST_INJECT"], "sitecustomize.py").is_file()
    assert variables["NCCL_PROFILER_PLUGIN"] == variables["HINDMOST_NCCL_PLUGIN"] == str(built / "nccl-1.so")
    assert variables["HINDMOST_NCCL_NEXT"] == "mine"
    assert "HINDMOST_MPI" not in variables
    without = prolog(tmp_path / "full", {"SLURM_JOB_ID": "77", "NCCL_PROFILER_PLUGIN": "none"})
    assert "NCCL" not in without, "the user wants no profiler"
    assert "HINDMOST_NCCL_NEXT" not in prolog(tmp_path / "full", {"SLURM_JOB_ID": "77"})


@pytest.mark.parametrize(
    ("symbols", "built", "shim"),
    [
        ("Allreduce_init", ["pmpi-persistent_large-1.so"], None),
        ("Allreduce_init", ["pmpi-persistent_large-1.so", "pmpi-persistent-1.so"], "pmpi-persistent-1.so"),
        ("Allreduce_init", ["pmpi-persistent_large-1.so", "pmpi-basic-1.so"], "pmpi-basic-1.so"),
        ("Allreduce", ["pmpi-persistent-1.so"], None),
        ("Allreduce", ["pmpi-1.so"], None),
    ],
)
def test_task_prolog_gives_its_own_mpi_s_shim(tmp_path: Path, symbols: str, built: list[str], shim: str | None) -> None:
    """A shim that has functions which the job's MPI lacks would fail the job's calls, however new it is."""
    for path, text in (("bin/mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n"), ("lib/libmpi.so.40", symbols)):
        file = tmp_path / "mpi" / path
        file.parent.mkdir(parents=True)
        file.write_text(text if path.startswith("bin") else f"\0PMPI_{symbols}\0")
        file.chmod(0o755)
    (tmp_path / "cache/hindmost").mkdir(parents=True)
    for age, name in enumerate(built):
        (tmp_path / "cache/hindmost" / name).touch()
        os.utime(tmp_path / "cache/hindmost" / name, (1000 - age, 1000 - age))
    said = prolog(tmp_path, {"SLURM_JOB_ID": "77", "PATH": f"{tmp_path / 'mpi/bin'}:{os.environ['PATH']}"})
    preloaded = [line for line in said.splitlines() if line.startswith("export LD_PRELOAD=")]
    assert preloaded == ([f"export LD_PRELOAD={tmp_path / 'cache/hindmost' / shim}"] if shim else [])
    assert ("export HINDMOST_MPI=python" in said) == (shim is None)


@pytest.mark.parametrize(
    "variable", ["HINDMOST_PROBE=0", "HINDMOST_JOB_ID=other", "HINDMOST_VENV=/none", "HINDMOST_SETTINGS=/none"]
)
def test_task_prolog_leaves_alone_who_wants_none(tmp_path: Path, variable: str) -> None:
    """A user who opted out, a job under hindmost run, a node without hindmost or without a collector get nothing."""
    name, value = variable.split("=")
    assert prolog(tmp_path, {"SLURM_JOB_ID": "77", name: value}) == ""


def prolog(tmp_path: Path, variables: dict[str, str]) -> str:
    """What the TaskProlog prints where hindmost is installed under ``tmp_path``."""
    shell_program(tmp_path / "bin" / "python", f'PYTHONPATH={ROOT / "agent"} exec {sys.executable} "$@"')
    settings = {"HINDMOST_SETTINGS": str(SYSTEMD / "hindmost-agent.default")}
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": "", "HINDMOST_VENV": str(tmp_path), **settings, **variables}
    script = DEPLOY / "slurm" / "task-prolog.sh"
    return subprocess.run(["bash", script], check=True, capture_output=True, text=True, env=environ).stdout


def test_compose_publishes_on_loopback_only() -> None:
    """A port without an address would be published on all of them, past the host's firewall."""
    services = compose_services()
    published = [port for service in services.values() for port in service["ports"]]
    assert len(published) >= len(services)
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    assert [name for name, service in services.items() if "network_mode" in service] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_listens_on_loopback_unless_it_is_told_otherwise(unit: Path) -> None:
    """Without its file under /etc/default, no network reaches it."""
    addresses = re.findall(r"(HINDMOST_LISTEN|HINDMOST_HTTP)=(\S+)", unit.read_text())
    assert addresses or "Type=oneshot" in unit.read_text().splitlines(), "a oneshot ends, and opens no port"
    assert [name for name, text in addresses if not _is_loopback(text)] == []


def test_what_the_examples_of_settings_open_needs_a_secret() -> None:
    """The collector's example opens the agents' port to the cluster, with a secret; all else is loopback."""
    for path in SYSTEMD.glob("*.default"):
        settings = settings_of(path)
        named = [name for name in ("HINDMOST_LISTEN", "HINDMOST_HTTP") if name in settings]
        open_ports = [name for name in named if not _is_loopback(settings[name])]
        assert open_ports in ([], ["HINDMOST_LISTEN"])
        assert not open_ports or settings["HINDMOST_COLLECTOR_TOKEN_FILE"]


def test_the_chart_has_nothing_that_opens_a_port_to_the_outside() -> None:
    """No NodePort, load balancer, ingress or port of a host; tests/kubernetes looks at what is rendered."""
    text = "".join(path.read_text() for path in (DEPLOY / "helm").rglob("templates/*"))
    assert "type: ClusterIP" in text
    assert not re.search(r"NodePort|LoadBalancer|Ingress\b(?!, Egress)|Gateway|hostPort|externalIPs", text)


def _is_loopback(text: str) -> bool:
    found = parse(text)
    return found is not None and is_loopback(found.host)
