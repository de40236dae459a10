"""``make picture``: photographs the pages of recordings, docs/images. Needs chromium."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
RECORDINGS = ROOT / "tests/fixtures/recordings"
#: Picture, recording, the part of the page's address that says what is shown, width, height (0: down to the table of
#: ranks), and whether it is dark.
PICTURES = (
    ("report.png", "mpi-observed-demo-slow-rank2", "", 1100, 0, False),
    ("page.png", "ddp-observed-late-hosts", "", 1280, 1000, False),
    ("page-rank.png", "ddp-observed-late-hosts", "rank=0", 1400, 940, True),
)
QUIET = "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-background-networking".split()
#: Time that a page has to draw, ms of the browser's own clock.
DRAWS = "--virtual-time-budget=4000"
#: Asks a page where its card of ranks ends, which goes into its title: notes and folds are left out.
MEASURE = """<script>setTimeout(() => {
  document.title = Math.ceil(document.querySelector('#panel').getBoundingClientRect().bottom) + 8;
}, 1500)</script>"""


def main() -> int:
    """Write the pictures; 1 where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.stderr.write("make picture: needs a browser: apt-get install chromium\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        page, browser = Path(folder) / "report.html", [chromium, *QUIET, DRAWS, f"--user-data-dir={folder}/profile"]
        for name, recording, address, width, height, dark in PICTURES:
            archive = RECORDINGS / f"{recording}.tar.xz"
            subprocess.run(["hindmost", "report", archive, "--format", "html", "-o", str(page)], check=True)
            colours = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
            size = f"--window-size={width},{height or _height(browser, page, width)}"
            shot = [f"--screenshot={IMAGES / name}", size, f"{page.as_uri()}#{address}"]
            subprocess.run([*browser, *colours, *shot], check=True, capture_output=True)
    return 0


def _height(browser: list[str], page: Path, width: int) -> int:
    """How high the page is at that width, down to its table."""
    measured = page.with_name("measured.html")
    measured.write_text(page.read_text(encoding="utf-8") + MEASURE, encoding="utf-8")
    shown = subprocess.run(
        [*browser, f"--window-size={width},100", "--dump-dom", measured.as_uri()],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    found = re.search(r"<title>(\d+)</title>", shown)
    if found is None:
        raise RuntimeError("the browser did not say how high the page is")
    return int(found[1])


if __name__ == "__main__":
    sys.exit(main())
