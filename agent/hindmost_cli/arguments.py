"""Options that several commands take: paths, and other thresholds for those that judge."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.credentials import Client
from hindmost.errors import MissingError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from hindmost_judge.settings import Settings


def filled(name: str, text: str) -> str:
    """The text that was given as this argument. Raises UsageError where there is none.

    A shell puts nothing where a variable is not set.
    """
    if not text:
        raise UsageError(f"{name} is empty: is a variable not set?")
    return text


def path(name: str) -> Callable[[str], Path]:
    """What makes a path of this argument."""
    return lambda text: Path(filled(name, text))


#: A range of more is a slip of the keyboard.
_MOST_RANKS = 1 << 20


def ranks(text: str) -> list[int]:
    """``0-3,17`` as a list of ranks. Raises ValueError where it is none."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        last = high if dash else low
        if not low.isdecimal() or not last.isdecimal() or not 0 <= int(last) - int(low) < _MOST_RANKS:
            raise ValueError(part)
        found += range(int(low), int(last) + 1)
    return found


def add_thresholds(parser: argparse.ArgumentParser, config: bool = True) -> None:
    """Add ``--set`` and, where there is no other file of settings, ``--config``."""
    meaning = "set a threshold of docs/reference/thresholds.md, e.g. min_effect=0.02; may be repeated"
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", help=meaning)
    if config:
        parser.add_argument(
            "--config", type=path("--config"), metavar="FILE", help="read thresholds from this TOML file, table [judge]"
        )


def add_proofs(parser: argparse.ArgumentParser) -> None:
    """Add how a client of a collector proves itself: see ``hindmost.credentials.Client``."""
    for name, meaning in (
        ("--tls-ca", "the authority that signed the collector's certificate"),
        ("--tls-cert", "this node's own certificate"),
        ("--tls-key", "the key of --tls-cert"),
        ("--token-file", "a file with the token for the collector, mode 0600"),
    ):
        parser.add_argument(name, type=partial(filled, name), metavar="FILE", help=meaning)


def client(args: argparse.Namespace) -> Client:
    """How this command proves itself, by the options of ``add_proofs`` or the variables of a job. Raises UsageError."""
    flags = {"cert": args.tls_cert, "key": args.tls_key, "ca": args.tls_ca, "token_file": args.token_file}
    return Client.of(flags, os.environ)


def thresholds(sets: Sequence[str] | None, config: Path | None = None) -> Settings:
    """The thresholds that flags, environment and file give, else the defaults. Raises UsageError."""
    settings: Settings = _module().resolve_thresholds(sets or (), os.environ, config)
    return settings


def given_thresholds(sets: Sequence[str] | None, config: Path | None = None) -> dict[str, float]:
    """Those that flags, environment and file give. Raises UsageError."""
    found: dict[str, float] = _module().given_thresholds(sets or (), os.environ, config)
    return found


def _module() -> ModuleType:
    try:
        import hindmost_collector.options as module
    except ImportError as error:
        raise MissingError(error, "collector") from error
    return module
