"""Chrome traces read one event at a time: what has been read is forgotten, whatever the size of the file."""

from __future__ import annotations

import codecs
import json
from typing import IO, TYPE_CHECKING, Any

from hindmost.errors import UsageError

from hindmost_collector.formats.files import open_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_CHUNK = 1 << 20
#: No event, and nothing around the events, is longer.
MAX_VALUE_CHARACTERS = 8 << 20
_BLANK = " \t\r\n\ufeff"
#: What cannot be decoded this near to the end of what was read may be whole when more is.
_NEAR = 64
#: What every event has.
_EVENT = '"ph"'


#: Beyond this no clock counts us: some 300 years since 1970.
_LATEST_US = 1e16


def microseconds(value: Any) -> float | None:
    """A time or a duration of an event; ``None`` for what is no number, or none that can be true."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LATEST_US else None


def events(path: Path, beside: dict[str, Any], wanted: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The events of a Chrome trace: an object with ``traceEvents``, or an array.

    The object's other values that are ``wanted`` are put into ``beside`` as they are met. A trace that was cut off
    gives what it has, and ``beside["torn"]`` is true. Raises :class:`UsageError` for what is no trace.
    """
    with open_bytes(path) as stream:
        scanner = _Scanner(path, stream)
        if scanner.take() == "[":
            yield from _array(scanner, beside)
        else:
            yield from _object(scanner, beside, wanted)


def _object(scanner: _Scanner, beside: dict[str, Any], wanted: Collection[str]) -> Iterator[dict[str, Any]]:
    while scanner.peek() != "}":
        key = scanner.whole()
        if key is not None and scanner.peek() and scanner.take() != ":":
            raise scanner.error("is not JSON")
        if key == "traceEvents" and scanner.peek() == "[":
            scanner.take()
            yield from _array(scanner, beside)
        elif key is not None:
            value = scanner.whole()
            if key in wanted:
                beside[key] = value
        if not scanner.peek():
            beside["torn"] = True
            return
        if scanner.peek() == ",":
            scanner.take()


def _array(scanner: _Scanner, beside: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while (mark := scanner.peek()) != "]":
        if mark == ",":
            scanner.take()
            continue
        value = scanner.event()
        if value is None:
            beside["torn"] = True
            return
        if isinstance(value, dict):
            yield value
    if scanner.skipped:
        beside["skipped"] = scanner.skipped
    scanner.take()


class _NoJsonError(UsageError):
    """A value that is torn, rather than made to do harm."""


#: In the place of an event that is torn.
_TORN = object()


class _Scanner:
    """A window on the text that moves on; :meth:`whole` decodes one JSON value at its front."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream
        self._text, self._at, self._ended = "", 0, False
        self._decoder = json.JSONDecoder()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.skipped = 0

    def error(self, what: str, kind: type[UsageError] = UsageError) -> UsageError:
        return kind(f"{self._path}: {what}; not a Chrome trace")

    def _more(self) -> bool:
        """Read on; false at the end of the file."""
        if self._ended:
            return False
        data = self._stream.read(_CHUNK)
        self._ended = not data
        self._text = self._text[self._at :] + self._utf8.decode(data, final=self._ended)
        self._at = 0
        return not self._ended

    def peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        blanks = 0
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
                blanks += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if blanks > _CHUNK:
                raise self.error("holds nothing but blanks")
            if not self._more():
                return ""

    def take(self) -> str:
        mark = self.peek()
        self._at += 1
        return mark

    def whole(self) -> Any:
        """The next value; None where the file ends within it."""
        if not self.peek():
            return None
        try:
            return self._value()
        except UsageError:
            if self._ended and len(self._text) - self._at < MAX_VALUE_CHARACTERS:
                self._at = len(self._text)
                return None
            raise

    def event(self) -> Any:
        """The next event that can be read; None where there is none any more. Torn ones are counted and left out."""
        while (found := self._event()) is _TORN:
            if not self._next_event():
                self._at = len(self._text)
                return None
            self.skipped += 1
        return found

    def _event(self) -> Any:
        try:
            return self._value()
        except _NoJsonError:
            return _TORN

    def _next_event(self) -> bool:
        """Go on to where the next event seems to begin; false where none does."""
        first = self._text.find(_EVENT, self._at)
        following = self._text.find(_EVENT, first + 1) if first >= 0 else -1
        begin = self._text.rfind("{", self._at + 1, following) if following >= 0 else -1
        if begin < 0:
            return False
        self._at = begin
        return True

    def _value(self) -> Any:
        """Decode the next value, reading on until it is whole."""
        self.peek()
        while True:
            found = self._decode()
            if found is not None and (found[1] < len(self._text) or self._ended):
                self._at = found[1]
                return found[0]
            if found is None and len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                most = f"{MAX_VALUE_CHARACTERS >> 20} MiB"
                raise self.error(f"is not JSON, or holds one value of more than {most}")
            if not self._more() and found is None:
                raise self.error("is not JSON", _NoJsonError)

    def _decode(self) -> tuple[Any, int] | None:
        """The value at the front and where it ends; None where it is not whole. A number at the end may go on."""
        try:
            return self._decoder.raw_decode(self._text, self._at)
        except json.JSONDecodeError as error:
            if error.pos < len(self._text) - _NEAR and not error.msg.startswith("Unterminated string"):
                raise self.error("is not JSON", _NoJsonError) from error
            return None
        except (RecursionError, ValueError) as error:
            raise self.error("is nested too deeply or holds a number too long") from error
