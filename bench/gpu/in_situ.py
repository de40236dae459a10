"""What each hook of the torch probe takes of a training step, timed around it while the loop runs.

A hook alone in a loop takes a fraction of what it takes between a loop's own work, where neither its code nor its data
are in the caches. So two clocks are put around every hook, outside it and inside it, and the step runs as ever.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

clock = time.perf_counter_ns


class InSitu:
    """Clocks around the hooks of one process; put in once."""

    def __init__(self, torch: Any) -> None:
        self.took: dict[str, list[int]] = defaultdict(list)
        self.hooked = True
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        self._surround(loader, "__next__", "input")
        self._surround(torch.autograd, "backward", "backward")
        optimizers = importlib.import_module("torch.optim.optimizer")
        for part, table in (
            ("optimizer before", optimizers._global_optimizer_pre_hooks),
            ("optimizer after", optimizers._global_optimizer_post_hooks),
        ):
            for key in list(table):
                table[key] = self._timed(part, table[key])

    def _surround(self, owner: Any, name: str, part: str) -> None:
        """Time what is between the outermost and the innermost call of a hooked function."""
        outer = getattr(owner, name)
        hook = hook_of(outer)
        original = hook.original
        inside = [0, 0]

        def inner(*args: Any, **kwargs: Any) -> Any:
            inside[0] = clock()
            try:
                return original(*args, **kwargs)
            finally:
                inside[1] = clock()

        def timed(*args: Any, **kwargs: Any) -> Any:
            call = outer if self.hooked else inner
            start = clock()
            try:
                return call(*args, **kwargs)
            finally:
                end = clock()
                self.took[f"{part} before"].append(inside[0] - start)
                self.took[f"{part} after"].append(end - inside[1])

        hook.original = inner
        setattr(owner, name, timed)

    def _timed(self, part: str, hook: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            start = clock()
            if self.hooked:
                hook(*args)
            self.took[part].append(clock() - start)

        return timed


def hook_of(function: Any) -> Any:
    """What has ``original``: a hook in C, or what stands for the function that a hook in Python surrounds."""
    recorder = importlib.import_module("hindmost.stepping").attached
    for each in recorder._followers:
        for hook in getattr(each, "entered", ()):
            if hook.function is function:
                return hook
    called = {"hook", "inside"} & set(function.__code__.co_freevars)
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))[called.pop()].cell_contents


def in_situ(torch: Any, steps: Callable[[int], float], rounds: int = 10, count: int = 200) -> dict[str, Any]:
    """us a step of every hook: the median and the mean over ``rounds`` x ``count`` steps, less the clocks' own."""
    clocks = InSitu(torch)
    found: dict[bool, dict[str, list[int]]] = {True: defaultdict(list), False: defaultdict(list)}
    for _ in range(rounds):
        for hooked in (True, False):
            clocks.hooked = hooked
            steps(4)
            clocks.took.clear()
            steps(count)
            for part, took in clocks.took.items():
                found[hooked][part] += took
    clocks.hooked = True
    parts = {
        part: {
            "median_us": (statistics.median(took) - statistics.median(found[False][part])) / 1e3,
            "mean_us": (sum(took) - sum(found[False][part])) / (rounds * count) / 1e3,
        }
        for part, took in found[True].items()
    }
    return {
        "steps": rounds * count,
        "parts": parts,
        "median_us_a_step": sum(part["median_us"] for part in parts.values()),
        "mean_us_a_step": sum(part["mean_us"] for part in parts.values()),
    }
