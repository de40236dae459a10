"""From ``--set`` over the environment over ``[judge]`` in a TOML file over what a run was recorded with to settings."""

from __future__ import annotations

from dataclasses import Field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from hindmost.errors import UsageError
from hindmost_judge.settings import Settings

from hindmost_collector.layers import JUDGE, converted, read
from hindmost_collector.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

PREFIX = "HINDMOST_JUDGE_"
#: The page that lists each threshold with its unit, range and reason.
PAGE = "docs/reference/thresholds.md"


def resolve(sets: Iterable[str], environ: Mapping[str, str], config: Path | None = None) -> Settings:
    """Merge the layers over the defaults: see :func:`given`."""
    return over({}, given(sets, environ, config))


def over(recorded: Mapping[str, Any], values: Mapping[str, float]) -> Settings:
    """The thresholds that a run was ``recorded`` with and those ``values`` that are given now, which count more.

    What was recorded and is no threshold of this version, or out of its range, is left out.
    """
    known = {one.name: one for one in fields(Settings)}
    kept = {name: value for name, value in recorded.items() if name in known and _fits(value, known[name])}
    settings = Settings(**{**kept, **values})
    if settings.hang_way_seconds >= settings.hang_seconds:
        way, least = settings.hang_way_seconds, settings.hang_seconds
        raise UsageError(f"hang_way_seconds is {way:g}: less than hang_seconds, which is {least:g}")
    return settings


def _fits(value: object, one: Field[Any]) -> bool:
    """Whether a threshold may have this value."""
    kind = (int, float) if isinstance(one.default, float) else int
    return isinstance(value, kind) and one.metadata["low"] <= value <= one.metadata["high"]


def given(sets: Iterable[str], environ: Mapping[str, str], config: Path | None = None) -> dict[str, float]:
    """The values of flags, environment and file.

    ``sets`` are ``NAME=VALUE`` each. Raises UsageError for an unknown name or an impossible value, named as the user
    wrote it.
    """
    known = {one.name: one for one in fields(Settings)}
    values: dict[str, Any] = {}
    for written, name, value in _written(sets, environ, config):
        if name not in known:
            like = get_close_matches(name, known, n=1)
            meant = f"did you mean {like[0]}? " if like else ""
            raise UsageError(f"{written} is not a threshold: {meant}{PAGE} lists them")
        one = known[name]
        found = converted(written, value, type(one.default))
        low, high = one.metadata["low"], one.metadata["high"]
        if not low <= found <= high:
            raise UsageError(f"{written} is {found:g}: between {low:g} and {high:g} ({one.metadata['unit']})")
        values[name] = found
    over({}, values)
    return values


def _written(sets: Iterable[str], environ: Mapping[str, str], config: Path | None) -> Iterator[tuple[str, str, Any]]:
    """Where each value was written, its name and itself; what counts more comes later."""
    yield from ((f"{config}: {JUDGE}.{name}", name, value) for name, value in _table(config).items())
    for key, value in environ.items():
        if key.startswith(PREFIX):
            yield key, key.removeprefix(PREFIX).lower(), value
    for one in sets:
        name, sign, value = one.partition("=")
        if not sign:
            raise UsageError(f"--set {one}: write NAME=VALUE, like --set min_effect=0.02")
        yield f"--set {name}", name.strip(), value.strip()


def _table(config: Path | None) -> Mapping[str, Any]:
    """What a TOML file has under ``[judge]``; the rest must be settings of the collector, for which it serves, too."""
    if config is None:
        return {}
    found = read(config)
    for name in found.keys() - {one.name for one in fields(Options)} - {JUDGE}:
        raise UsageError(f"{config}: {name} is neither [{JUDGE}] nor a setting of the collector")
    table = found.get(JUDGE, {})
    if not isinstance(table, dict):
        raise UsageError(f"{config}: {JUDGE} is {table!r}: write thresholds under [{JUDGE}]")
    return table
