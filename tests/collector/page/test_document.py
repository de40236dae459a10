"""The page as one document: small, self-contained, legible."""

import base64
import dataclasses
import gzip
import json
import re
from itertools import combinations

import numpy as np
import pytest
from hindmost_collector.page import document
from hindmost_collector.page.data import heat_map, of_steps
from hindmost_collector.page.history import StepHistory
from hindmost_judge.overview import PLANES

from .steps import late_steps

CSS = document.asset("page.css")
_LIGHT, _DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
)
THEMES = pytest.mark.parametrize("colours", [_LIGHT, _DARK], ids=["light", "dark"])
#: Parts that stand next to each other in one lane.
HOST = (
    "input",
    "h2d",
    "forward",
    "backward",
    "sync",
    "optimizer",
    "checkpoint",
    "device-wait",
    "wait",
    "transfer",
    "other",
)
BETWEEN = ("self-cpu", "self-runqueue", "self-blocked", "wait", "transfer", "other")
GPU = ("forward", "backward", "optimizer", "wait", "transfer")


def rgb(colour: str) -> np.ndarray:
    """Linear light of red, green and blue."""
    parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 has it."""
    low, high = sorted(float(rgb(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(colour: str) -> np.ndarray:
    """CIE L*a*b*: distances are about what an eye sees."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ rgb(colour) / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@THEMES
def test_text_and_marks_stand_out(colours: dict[str, str]) -> None:
    """4.5 to 1 for text, 3 to 1 for the parts of a step."""
    for ground in (colours["card"], colours["ground"]):
        for name in ("ink", "soft", "bad", "warn", "info", "ok", "unsure"):
            assert contrast(colours[name], ground) >= 4.5, name
    for part in {*HOST, *BETWEEN, *GPU, "idle", "issue", "device-copy", "self"}:
        assert contrast(colours[part], colours["card"]) >= 3, part


@THEMES
@pytest.mark.parametrize("lane", [HOST, BETWEEN, GPU], ids=["host", "between", "gpu"])
def test_parts_of_a_lane_are_told_apart(colours: dict[str, str], lane: tuple[str, ...]) -> None:
    """No two of them look alike."""
    for one, other in combinations(lane, 2):
        assert np.linalg.norm(lab(colours[one]) - lab(colours[other])) >= 14, (one, other)


def test_every_part_of_a_lane_has_a_colour() -> None:
    """None is drawn in the colour of nothing."""
    parts = {name.removeprefix("gpu_").replace("_", "-") for name in PLANES} | {
        "self",
        "wait",
        "transfer",
        "other",
        "idle",
    }
    assert parts <= _LIGHT.keys()
    assert parts <= _DARK.keys() | {"checkpoint"}


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No address in it but those of licences and of XML's names."""
    page = document.render({"state": None})
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert len(page) < 200_000


def test_one_slow_rank_of_a_thousand_stands_out_of_the_noise() -> None:
    """Its cells are far up the scale, those of all others far down."""
    found = late_steps(0, 199, late=3.0, ranks=1024)
    noise = np.abs(np.random.default_rng(1).normal(0.0, 0.2e6, found.planes["delay"].shape))
    history = StepHistory()
    history.add(dataclasses.replace(found, planes={**found.planes, "delay": found.planes["delay"] + noise}))
    heat = heat_map(history, None, found.period.mean() / 1e6)
    assert heat is not None
    cells = np.frombuffer(base64.b64decode(heat["cells"]), np.uint8).reshape(heat["rows"], -1)
    assert np.median(cells[0]) > 180
    assert np.percentile(cells[1:], 99) < 120


def test_4096_ranks_stay_small_on_the_wire() -> None:
    """A page that is open asks again after 2.5 ms a rank: less than 200 kB a second."""
    history = StepHistory()
    history.add(late_steps(0, 399, ranks=4096))
    sent = len(gzip.compress(json.dumps(of_steps(history, {}, first=100)).encode(), 1))
    assert sent / (4096 * 0.0025) < 200_000


def test_without_any_delay_there_is_no_map_of_delays() -> None:
    """A single rank has no peers: an empty map would look like one that failed."""
    found = late_steps(0, 399)
    history = StepHistory()
    history.add(
        dataclasses.replace(found, planes={**found.planes, "delay": np.full_like(found.planes["delay"], np.nan)})
    )
    assert heat_map(history, None, found.period.mean() / 1e6) is None
