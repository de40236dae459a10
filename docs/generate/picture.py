"""``make picture``: photographs reports, docs/images: that of a demo run, and the page of a recording. Needs chromium.

python -m docs.generate.picture RUN     # the report of a run directory instead of the demo
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
RECORDING = ROOT / "tests/fixtures/recordings/ddp-observed-late-hosts.tar.xz"
#: Pictures of the recording's page: the part of its address that says what is shown, width and height, dark or not.
PAGES = {"page.png": ("", 1280, 1000, False), "page-rank.png": ("rank=0", 1400, 940, True)}
WIDTH = 1100
JOB = "mpirun --bind-to none -np 4 python examples/train_mpi.py --slow-rank 2 --slow-ms 4".split()
QUIET = "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-background-networking".split()
#: Time that a page has to draw, ms of the browser's own clock.
DRAWS = "--virtual-time-budget=4000"
#: Asks a page where its card of ranks ends, which goes into its title: notes and folds are left out.
MEASURE = """<script>setTimeout(() => {
  document.title = Math.ceil(document.querySelector('#panel').getBoundingClientRect().bottom) + 8;
}, 1500)</script>"""


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
        browser = [chromium, *QUIET, DRAWS, f"--user-data-dir={folder}/profile"]
        IMAGES.mkdir(exist_ok=True)
        _photograph(browser, page.as_uri(), "report.png", WIDTH, _height(browser, page))
        subprocess.run(["hindmost", "report", RECORDING, "--format", "html", "-o", str(page)], check=True)
        for name, (address, width, height, dark) in PAGES.items():
            colours = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
            _photograph([*browser, *colours], f"{page.as_uri()}#{address}", name, width, height)
    return 0


def _photograph(browser: list[str], address: str, name: str, width: int, height: int) -> None:
    shot = [f"--screenshot={IMAGES / name}", f"--window-size={width},{height}", address]
    subprocess.run([*browser, *shot], check=True, capture_output=True)


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
