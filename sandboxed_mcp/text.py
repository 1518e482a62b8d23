"""Text from a server, made safe to show; secrets, kept out of what is shown.

A server chooses every byte of its output. `sanitize` makes it safe for a terminal and a log,
`Redactor` takes the values of secrets out, `TailBuffer` keeps the last bytes of a stream.
Redact first, then sanitize: a secret may hold characters that sanitizing rewrites.

Nothing here is ever applied to the messages between server and client.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["MIN_SECRET_BYTES", "Redactor", "TailBuffer", "sanitize"]

MIN_SECRET_BYTES: Final = 4
"""Shorter secrets are not redacted: they would blank out ordinary text and so give
themselves away."""

_MIN_ENCODED_BYTES: Final = 8
_UNRESERVED: Final = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
)
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")

# Printable for Python, invisible on a screen (Unicode: Default_Ignorable_Code_Point).
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def sanitize(text: str | bytes | bytearray, limit: int, *, multiline: bool = False) -> str:
    r"""Make text from a server safe for a terminal and a log.

    Everything that does not print as itself is escaped as `\xNN`, `\uNNNN` or `\UNNNNNNNN`:
    control characters (C0, C1, so every terminal sequence), line and paragraph separators,
    bidirectional controls, zero-width, tag and other invisible characters, lone surrogates,
    private and unassigned code points, and the bytes that are not valid UTF-8.

    Args:
        text: Text, or bytes that should be UTF-8; only what `limit` needs is looked at.
        limit: The longest result, in characters; `...` follows when something was left out.
        multiline: Keep newlines and tabs, and read `\r\n` as a newline.
    """
    if not isinstance(text, str):
        text = bytes(text[: 8 * limit + 8]).decode(errors="backslashreplace")
    if multiline:
        text = text.replace("\r\n", "\n")
    text = text[: limit + 1]
    kept = "\n\t" if multiline else ""
    shown: list[str] = []
    room = limit
    for char in text:
        piece = char if _prints(char) or char in kept else _escape(char)
        room -= len(piece)
        if room < 0:
            return "".join([*shown, "..."])
        shown.append(piece)
    return "".join(shown)


def _prints(char: str) -> bool:
    return char.isprintable() and _INVISIBLE.match(char) is None


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:  # noqa: PLR2004 - the three widths of Python's escapes
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


class Redactor:
    """Replaces the values of secrets by `[secret NAME]`.

    Found are: the value, each longer line of it, and the value as JSON, Python `repr`, base64
    (standard and URL-safe, also inside a longer encoded text), percent-encoded and in
    hexadecimal. This guards against accidents; a server that means to give its own secret
    away can write it in ways that no filter knows.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """Prepare the forms to look for.

        Args:
            secrets: Values by name; values of less than `MIN_SECRET_BYTES` bytes of UTF-8
                are not looked for.
        """
        self._names: dict[bytes, bytes] = {}
        for name, secret in secrets.items():
            marker = f"[secret {name}]".encode(errors="backslashreplace")
            value = secret.encode(errors="surrogateescape")
            if len(value) >= MIN_SECRET_BYTES:
                self._names.setdefault(value, marker)
                for form in _list_forms(secret, value):
                    if len(form) >= _MIN_ENCODED_BYTES:
                        self._names.setdefault(form, marker)

    @property
    def longest(self) -> int:
        """The length of the longest form that is looked for, in bytes; 0 without secrets."""
        return max(map(len, self._names), default=0)

    def redact(self, text: str) -> str:
        """Return the text without the values."""
        if not self._names:
            return text
        data = text.encode(errors="surrogatepass")
        return self.redact_bytes(data).decode(errors="surrogatepass")

    def redact_bytes(self, data: bytes, start: int = 0) -> bytes:
        """Return the bytes without the values.

        Args:
            data: What may hold secrets; meant for messages and tails, not for bulk data.
            start: Where the result begins; a secret across this position is replaced whole.
        """
        result: list[bytes] = []
        position = start
        for begin, end, marker in self._find(data):
            if end <= position:
                continue
            if begin >= position or not result:
                result += [data[position:begin], marker]
            position = end
        return b"".join([*result, data[position:]])

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """Cut a stream where no secret is cut.

        Args:
            data: What has arrived so far and was not shown yet.

        Returns:
            What can be shown now, without the values, and the rest, unchanged: it may hold the
            beginning of a value whose end has not arrived yet.
        """
        cut = max(len(data) - max(self.longest - 1, 0), 0)
        for begin, end, _ in self._find(data):
            if begin < cut < end:
                cut = begin
        return self.redact_bytes(data[:cut]), data[cut:]

    def show_head(self, line: bytes | bytearray, limit: int) -> str:
        """Return the beginning of a line without the values, sanitized.

        Args:
            line: The line; only what `limit` needs is looked at.
            limit: The longest result, in characters, without the `...` of a cut.
        """
        head = bytes(line[: 8 * limit + 8 + self.longest])
        return sanitize(self.redact_bytes(head), limit)

    def _find(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return begin, end and replacement of each occurrence, also of overlapping ones."""
        return sorted(
            (begin, begin + len(form), marker)
            for form, marker in self._names.items()
            for begin in _find_all(data, form)
        )


def _find_all(data: bytes, form: bytes) -> Iterator[int]:
    position = data.find(form)
    while position >= 0:
        yield position
        position = data.find(form, position + 1)


def _list_forms(secret: str, value: bytes) -> Iterable[bytes]:
    """Return the ways in which programs usually write the value."""
    yield from value.splitlines()
    for text in (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret)):
        yield text[1:-1].encode(errors="backslashreplace")
    yield value.hex().encode()
    yield value.hex().upper().encode()
    for safe, pattern in product((b"", b"/"), (b"%%%02X", b"%%%02x")):
        quoted = b"".join(_percent(byte, safe, pattern) for byte in value)
        yield from (quoted, quoted.replace(b"%20", b"+"))
    for form in _list_base64(value):
        yield from (form, form.translate(_URL_SAFE))


def _percent(byte: int, safe: bytes, pattern: bytes) -> bytes:
    return bytes([byte]) if byte in _UNRESERVED or byte in safe else pattern % byte


def _list_base64(value: bytes) -> Iterable[bytes]:
    """Return the value's base64, alone and at each alignment inside a longer text."""
    yield b2a_base64(value, newline=False)
    for shift in range(3):
        encoded = b2a_base64(bytes(shift) + value, newline=False)
        first = -(-shift * 8 // 6)
        yield encoded[first : (shift + len(value)) * 8 // 6]


class TailBuffer:
    """Keeps the last bytes of a stream, such as a server's stderr."""

    def __init__(self, limit: int, redactor: Redactor | None = None) -> None:
        """Start empty.

        Args:
            limit: How many bytes are shown at most.
            redactor: Takes secrets out of what is shown.
        """
        if limit < 1:
            raise ValueError(f"a tail of {limit} bytes keeps nothing; use 1 or more")
        self._limit = limit
        self._redactor = redactor or Redactor({})
        # The margin lets a secret be recognised that begins before the part that is shown.
        self._kept = limit + self._redactor.longest
        self._buffer = bytearray()
        self._cut = False

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes, in amortised constant time a byte."""
        self._cut = self._cut or len(data) > self._kept
        self._buffer += data[-self._kept :]
        if len(self._buffer) > 2 * self._kept:
            self._cut = True
            del self._buffer[: -self._kept]

    def show(self) -> str:
        """Return the tail as text: secrets redacted, sanitized, newlines and tabs kept.

        It begins at the start of a line, or at least of a character.
        """
        start = max(0, len(self._buffer) - self._limit)
        tail = self._redactor.redact_bytes(bytes(self._buffer), start)
        if start or self._cut:
            tail = _cut_partial(tail)
        return sanitize(tail, 4 * len(tail), multiline=True)


def _cut_partial(tail: bytes) -> bytes:
    """Drop a partial first line, or a partial first character of an only line."""
    _, newline, rest = tail.partition(b"\n")
    if newline and rest.strip():
        return rest
    return tail.lstrip(bytes(range(0x80, 0xC0)))
