"""TLS handshakes that fail on the agents' port: whose, and why. gRPC writes that into its own log alone, on C's stderr.

So that stream becomes a pipe, which is read here. File 2 stays what it was, for Python and for started programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import re
from collections.abc import Callable

#: Variables with which gRPC logs handshakes: some 5 KiB for each, and nothing of a call.
TRACE = {"GRPC_VERBOSITY": "INFO", "GRPC_TRACE": "handshaker"}
#: For 200 handshakes between two reads: gRPC waits for no reader, so what more there are is neither counted nor logged.
_PIPE_BYTES = 1 << 20
#: A line has at most this; of what is read more is never kept for the next read.
_LINE_BYTES = 1 << 13
_FAILED = re.compile(rb"CallNextHandshakerLocked: error=(?!OK)(.*?) shutdown=.*?endpoint_peer_address=([^,}]+)", re.S)
_REASON = re.compile(r"(?:OPENSSL_internal:|failed \()([\w ]+\w)(?:: (.*?))?(?:: OK)?[ ()]*(?:\(.*)?$", re.M)
_WORDS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not accepted ({}): issue it one of the authority of --tls-ca",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate: give it --tls-cert and --tls-key",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: give it --tls-ca",
    "HTTP_REQUEST": "it speaks HTTP without TLS: the page has another port (--http)",
    "Socket closed": "it broke off: no agent, or one whose --tls-ca or --collector does not fit --tls-cert",
    "FD Shutdown": "it did not complete the TLS handshake in time",
}


class _Pipe:
    reading = -1


def capture() -> bool:
    """Make C's stderr a pipe, once, before gRPC is loaded; whether that is done.

    Another C library than glibc has no such variable.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        library = ctypes.CDLL(None, use_errno=True)
        library.fdopen.restype = ctypes.c_void_p
        stream = ctypes.c_void_p.in_dll(library, "stderr")
        reading, writing = os.pipe()
        with contextlib.suppress(OSError):  # a user may have less
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        for end in (reading, writing):
            os.set_blocking(end, False)
        stream.value = library.fdopen(writing, b"w")
        library.setvbuf(stream, None, 2, 0)  # each line at once
        _Pipe.reading = reading
    return _Pipe.reading >= 0


def watch(failed: Callable[[str, str], None]) -> None:
    """Call ``failed`` with the address and the reason of each that fails, from the running loop."""
    if _Pipe.reading >= 0:
        asyncio.get_running_loop().add_reader(_Pipe.reading, _read, _Pipe.reading, bytearray(), failed)


def _read(reading: int, unread: bytearray, failed: Callable[[str, str], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        unread += os.read(reading, _PIPE_BYTES)
    end = 0
    for found in _FAILED.finditer(unread):
        end = found.end()
        failed(found[2].decode(), in_words(found[1].decode(errors="replace")))
    del unread[: max(end, len(unread) - _LINE_BYTES)]


def in_words(error: str) -> str:
    """What a user can do about an error of gRPC."""
    found = _REASON.search(error) or re.match("(.*)()", error)
    reason, detail = found.groups() if found else ("", "")
    for name, words in _WORDS.items():
        if reason.startswith(name):
            return words.format(detail)
    return f"the TLS handshake failed: {reason}"
