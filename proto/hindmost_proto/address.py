"""Addresses of services, as every option and setting takes them: ``HOST:PORT``."""

import re
from typing import NamedTuple

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s/\[\]]*):(\d{1,5})")


class Address(NamedTuple):
    """Where to listen or connect; an empty host means every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse(text: str) -> Address | None:
    """``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``; ``None`` of anything else, for the caller to name."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        return None
    return Address(match[1].strip("[]"), int(match[2]))
