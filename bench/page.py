"""What the page costs the browser that shows it: frames a second while it scrolls, memory of the tab, bytes.

    python -m bench.page --write bench/results/page.json

A headless Chromium without a GPU, as the tests have it, shows a running job of so many ranks and steps. It scrolls the
table of ranks for some seconds, a new place in each frame. Frames are those that the browser drew, by its own
animation clock. Memory is its JavaScript heap after a collection; bytes are those of all answers over that time.
"""

import argparse
import itertools
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from hindmost_collector.serve.http import Page

from tests.browser.conftest import Browser, Shown, _port
from tests.browser.test_page import overview, report

#: Ranks and steps of each size.
SIZES = ((1024, 500), (4096, 500))
SCROLL = """
  const box = document.querySelector('#scroll'), times = [];
  let began = 0;
  window.frames_drawn = null;
  const next = now => {
    began = began || now;
    times.push(now);
    box.scrollTop = (box.scrollTop + 97) % (box.scrollHeight - box.clientHeight);
    if (now - began < SECONDS * 1000) requestAnimationFrame(next);
    else window.frames_drawn = times;
  };
  requestAnimationFrame(next);
"""
BYTES = """
  return performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)
"""


def measured(browser: Browser, ranks: int, steps: int, seconds: float) -> dict[str, Any]:
    """Of one size."""
    page = Page(("127.0.0.1", 0), Shown(report(world_size=ranks), overview(ranks=ranks, steps=(0, steps))))
    try:
        browser.width(1280)
        browser.open(f"http://{page.address}/")
        browser.until("document.querySelectorAll('tr.rank').length")
        time.sleep(1.0)
        first, began = browser.run(BYTES), time.monotonic()
        browser.run(SCROLL.replace("SECONDS", str(seconds)))
        times = browser.until("window.frames_drawn")
        each = sorted(after - before for before, after in itertools.pairwise(times))
        sent, took = browser.run(BYTES) - first, time.monotonic() - began
        return {
            "ranks": ranks,
            "steps": steps,
            "frames_a_second": round((len(times) - 1) / (times[-1] - times[0]) * 1e3, 1),
            "frame_ms_p50": round(each[len(each) // 2], 1),
            "frame_ms_p99": round(each[int(0.99 * len(each))], 1),
            "heap_mb": round(browser.run("return performance.memory.usedJSHeapSize") / 1e6, 1),
            "opening_kb": round(first / 1e3),
            "kb_a_second": round(sent / took / 1e3, 1),
        }
    finally:
        page.close()


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long to scroll")
    parser.add_argument("--write", type=Path, help="where the figures go as JSON")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        try:
            browser = Browser(f"http://127.0.0.1:{_port(driver)}", profile)
            found = [measured(browser, ranks, steps, args.seconds) for ranks, steps in SIZES]
            browser.close()
        finally:
            driver.terminate()
            driver.wait(20)
    for one in found:
        print(json.dumps(one), flush=True)
    if args.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores"
        result = {"machine": machine, "load": [before, os.getloadavg()[0]], "measured": found}
        args.write.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
