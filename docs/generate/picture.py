"""``make picture``: runs the demo and photographs its HTML report, docs/images/report.png. Needs chromium.

python -m docs.generate.picture RUN     # the report of a run directory instead
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "report.png"
WIDTH = 1100
JOB = "mpirun --bind-to none -np 4 python examples/train_mpi.py --slow-rank 2 --slow-ms 4".split()
QUIET = "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-background-networking".split()
#: Asks a page where its table of ranks ends, which goes into its title: notes and folds are left out.
MEASURE = """<script>addEventListener('load', () => {
  document.title = Math.ceil(document.querySelector('table').getBoundingClientRect().bottom) + 2;
})</script>"""


def main(arguments: Sequence[str]) -> int:
    """Write the picture of a run directory, or of a new run of the demo; 1 where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.stderr.write("make picture: needs a browser: apt-get install chromium\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        run, page = arguments[0] if arguments else f"{folder}/run", Path(folder) / "report.html"
        if not arguments:
            subprocess.run(["hindmost", "run", "--no-live", "--out", run, "--", *JOB], cwd=ROOT, check=True)
        subprocess.run(["hindmost", "report", run, "--format", "html", "-o", str(page)], check=True)
        browser = [chromium, *QUIET, f"--user-data-dir={folder}/profile"]
        height = _height(browser, page)
        PICTURE.parent.mkdir(exist_ok=True)
        shot = [f"--screenshot={PICTURE}", f"--window-size={WIDTH},{height}", page.as_uri()]
        subprocess.run([*browser, *shot], check=True, capture_output=True)
    return 0


def _height(browser: list[str], page: Path) -> int:
    """How high the report is at that width, down to its table."""
    measured = page.with_name("measured.html")
    measured.write_text(page.read_text(encoding="utf-8") + MEASURE, encoding="utf-8")
    shown = subprocess.run(
        [*browser, f"--window-size={WIDTH},100", "--dump-dom", measured.as_uri()],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = re.search(r"<title>(\d+)</title>", shown)
    if found is None:
        raise RuntimeError("the browser did not say how high the report is")
    return int(found[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
