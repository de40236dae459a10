"""The recipe of docs/how-to/run-a-service.md for machines without a network: what it downloads is enough."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A network of its own, with nothing in it but loopback.
CUT_OFF = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

pytestmark = [pytest.mark.wheel, pytest.mark.needs("unshare", "ip"), pytest.mark.timeout(500)]


def recipe() -> list[str]:
    """The commands as the page has them."""
    page = (ROOT / "docs/how-to/run-a-service.md").read_text()
    (block,) = re.findall(r"^## Install it without a network\n.*?```\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    return [line.partition("#")[0].strip() for line in block.splitlines() if line.strip()]


def test_what_is_downloaded_installs_and_works_without_a_network(tmp_path: Path) -> None:
    """The page's own commands, the second half of them cut off; then a job is observed."""
    if os.getuid() != 0:
        pytest.skip("needs root for a network of its own")
    wheel, download, pack, unpack, make, install = recipe()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    opt = tmp_path / "opt"
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(line: str, cwd: Path, *front: str) -> str:
        placed = line.replace("/opt/hindmost", str(opt)).replace("/tmp/", f"{tmp_path}/")
        words = [*front, "bash", "-euc", placed.replace(" .", f" {ROOT}") if line == wheel else placed]
        done = subprocess.run(
            words, cwd=cwd, env=os.environ | python, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout + done.stderr

    for line in (wheel, download, pack):
        run(line, tmp_path)
    (archive,) = tmp_path.glob("*.tar")
    archive.rename(elsewhere / archive.name)
    for line in (unpack, make, install):
        run(line, elsewhere, *CUT_OFF)
    said = run(f"{opt}/bin/hindmost run --out run -- {opt}/bin/python -c pass", elsewhere, *CUT_OFF)
    assert "hindmost: report" in said
    assert (elsewhere / "run/report.html").is_file()
