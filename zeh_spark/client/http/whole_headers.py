"""HTTP connections that refuse an answer whose headers were cut.

Python's `http.client` takes the end of the connection for the end of the headers. An answer that is
cut there looks like a whole answer with an empty body: a page without events, or a refusal without
an explanation. These connections read the headers up to their empty line (RFC 9112, 2.1), and fail
as they do when the publisher does not answer.

Rule for editors: only reading of the header lines is watched. What the lines mean stays the
libraries' business. Runs wherever a client runs.
"""

from __future__ import annotations

import http.client
from typing import Any, cast

from urllib3.connection import HTTPConnection, HTTPSConnection


class _Lines:
    """A file that remembers the last line that was read."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.last = b""

    def readline(self, *limit: int) -> bytes:
        self.last = cast("bytes", self.file.readline(*limit))
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _Response(http.client.HTTPResponse):
    """An answer; RemoteDisconnected if its headers do not end with an empty line."""

    def begin(self) -> None:
        lines = _Lines(self.fp)
        self.fp = cast("Any", lines)
        try:
            super().begin()
        finally:
            if cast("Any", self.fp) is lines:  # else it was closed: there is no body
                self.fp = lines.file
        if lines.last not in (b"\r\n", b"\n"):
            raise http.client.RemoteDisconnected("the headers of the answer were cut")


class WholeHttpConnection(HTTPConnection):
    """A connection of which a cut answer is refused."""

    response_class = _Response


class WholeHttpsConnection(HTTPSConnection):
    """The same with TLS."""

    response_class = _Response
