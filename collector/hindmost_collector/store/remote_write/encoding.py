"""Samples as Prometheus remote write 1.0 wants them: protobuf laid out by numpy, without an object a sample.

A message is a row of time series, and a time series its labels and then its samples::

    0A len( 0A len(label) label …  12 10 09 VALUE(8) 10 TIME(6)  12 10 … )

The time, ms since 1970, takes six bytes of varint from 1971 to 2109, so each sample takes 18 bytes and has its place.
What differs between two blocks of one schema is values, times and the node's name; the rest is a template.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_proto.exposition import JOB_LABEL

from hindmost_collector.ingest.packed_fields import varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hindmost_collector.ingest.definitions import Schema

Array = np.ndarray[Any, Any]

SAMPLE_BYTES = 18
#: Times that six bytes hold: from 1971 to 2109.
EARLIEST_MS, LATEST_MS = 1 << 35, (1 << 42) - 1
#: The NaN that says that a series has ended.
STALE = float(np.array([0x7FF0000000000002], np.uint64).view(np.float64)[0])
_TEMPLATES = 256
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNESCAPE = {"n": "\n", '"': '"', "\\": "\\"}


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def labels(pairs: Mapping[str, str]) -> bytes:
    """Labels in the order of their names, as the protocol asks; those without a value left out."""
    return b"".join(
        _field(0x0A, _field(0x0A, name.encode()) + _field(0x12, str(value).encode()))
        for name, value in sorted(pairs.items())
        if value
    )


def samples(times_ms: Array, values: Array) -> Array:
    """(S, T * 18) bytes of ``values`` (S, T) at ``times_ms`` (T,), which lie between EARLIEST_MS and LATEST_MS."""
    series, ticks = values.shape
    out = np.empty((series, ticks, SAMPLE_BYTES), np.uint8)
    out[..., 0:3] = (0x12, SAMPLE_BYTES - 2, 0x09)
    out[..., 3:11] = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(series, ticks, 8)
    out[..., 11] = 0x10
    for index in range(6):
        out[..., 12 + index] = (times_ms >> 7 * index & 0x7F) | (0x80 if index < 5 else 0)
    return out.reshape(series, ticks * SAMPLE_BYTES)


def one_series(label_bytes: bytes, times_ms: Array, values: Array) -> bytes:
    """One time series; ``values`` (T,)."""
    return _field(0x0A, label_bytes + samples(times_ms, values[None, :]).tobytes())


@dataclass(frozen=True)
class _Template:
    content: Array
    nodes: Array
    values: Array


class Encoder:
    """Encodes blocks of metrics. Templates are kept by schema, length of the node's name, series present, and ticks."""

    def __init__(self, job_label: str = JOB_LABEL) -> None:
        self._job_label = job_label
        self._templates: OrderedDict[tuple[int, int, bytes, int], _Template] = OrderedDict()

    def block(self, node: str, ref: int, schema: Schema, times_ms: Array, values: Array) -> bytes:
        """The time series of a block, ``values`` (T, S), NaN for missing: those samples are left out."""
        missing = np.isnan(values) & (values.view(np.uint64) != np.float64(STALE).view(np.uint64))
        some = missing.any(axis=0)
        whole = ~some
        parts = [self._whole(node, ref, schema, times_ms, values, whole)] if whole.any() else []
        for column in np.flatnonzero(some & ~missing.all(axis=0)).tolist():
            kept = ~missing[:, column]
            parts.append(
                one_series(_labels(schema, column, node, self._job_label), times_ms[kept], values[kept, column])
            )
        return b"".join(parts)

    def _whole(self, node: str, ref: int, schema: Schema, times_ms: Array, values: Array, whole: Array) -> bytes:
        name = np.frombuffer(node.encode(), np.uint8)
        key = ref, len(name), np.packbits(whole).tobytes(), len(times_ms)
        template = self._templates.get(key)
        if template is None:
            columns = np.flatnonzero(whole).tolist()
            template = self._templates[key] = _template(schema, columns, node, len(times_ms), self._job_label)
            if len(self._templates) > _TEMPLATES:
                self._templates.popitem(last=False)
        out = template.content.copy()
        if len(name):
            out[template.nodes[:, None] + np.arange(len(name))] = name
        width = len(times_ms) * SAMPLE_BYTES
        out[template.values[:, None] + np.arange(width)] = samples(times_ms, values.T[whole])
        return bytes(out.data)


def _labels(schema: Schema, column: int, node: str, job_label: str) -> bytes:
    own = json.loads(schema.labels(column))
    if "job" in own:
        own[job_label] = own.pop("job")
    return labels({"__name__": schema.head.names[column], "node": node, **own})


def _template(schema: Schema, columns: Sequence[int], node: str, ticks: int, job_label: str) -> _Template:
    """Everything of a message but node and samples, and where those go."""
    room = bytes(ticks * SAMPLE_BYTES)
    mark = _field(0x0A, _field(0x0A, b"node") + _field(0x12, node.encode()))
    out, nodes, places = bytearray(), [], []
    for column in columns:
        told = _labels(schema, column, node, job_label)
        head = b"\x0a" + varint(len(told) + len(room))
        if node:
            nodes.append(len(out) + len(head) + told.index(mark) + len(mark) - len(node.encode()))
        out += head + told
        places.append(len(out))
        out += room
    return _Template(np.frombuffer(bytes(out), np.uint8), np.array(nodes, np.int64), np.array(places, np.int64))


class PageEncoder:
    """Encodes the text of a metrics page, and marks as stale what was on the page before and is not any more."""

    def __init__(self) -> None:
        self._labels: dict[str, bytes] = {}

    def page(self, lines: Iterable[str], time_ms: int) -> tuple[bytes, int]:
        """``(time series, how many)`` of a page's lines, all at ``time_ms``; the last of one given twice."""
        found = {}
        for line in lines:
            series, _, value = line.rpartition(" ")
            if series and not line.startswith("#"):
                found[series] = float(value)
        known = self._labels
        self._labels = {series: known.pop(series, b"") or _parsed(series) for series in found}
        told = [*self._labels.values(), *known.values()]
        values = [*found.values(), *[STALE] * len(known)]
        block = samples(np.array([time_ms]), np.array(values, np.float64)[:, None])
        parts = [_field(0x0A, one + row.tobytes()) for one, row in zip(told, block, strict=True)]
        return b"".join(parts), len(parts)


def _parsed(series: str) -> bytes:
    name, _, inside = series.partition("{")
    pairs = {key: re.sub(r"\\(.)", lambda m: _UNESCAPE.get(m[1], m[1]), text) for key, text in _LABEL.findall(inside)}
    return labels({"__name__": name, **pairs})
