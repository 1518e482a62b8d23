"""What the server side of a sandbox tries, from inside; a program of its own.

Reads one JSON object a line from standard input, `{"do": NAME, ...arguments}`, does it, and
writes one line: `{"value": ...}` or `{"error": "ECONNREFUSED"}`, `TIMEOUT` or a type's name.
The standard library alone and Python 3.9 or later, so that it runs in any image: give the file
to `python3` in the container. It holds no privilege of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

_SO_MARK = 36
_handles: dict[int, socket.socket] = {}


def _socket(protocol: str, address: str, timeout: float) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    made = socket.socket(family, kind)
    made.settimeout(timeout)
    return made


def exchange(  # noqa: PLR0913, PLR0917 - the keys of one wish
    protocol: str,
    address: str,
    port: int,
    text: str = "hello",
    timeout: float = 2.0,
    source_port: int = 0,
    mark: int = 0,
) -> str:
    """Connect, send, and return the answer."""
    with _socket(protocol, address, timeout) as made:
        if mark:
            made.setsockopt(socket.SOL_SOCKET, _SO_MARK, mark)
        if source_port:
            made.bind(("", source_port))
        made.connect((address, port))
        made.sendall(text.encode())
        return made.recv(65536).decode()


def exchange_hex(protocol: str, address: str, port: int, data: str, timeout: float = 2.0) -> str:
    """Like `exchange`, with bytes in hexadecimal; TCP gets the length that DNS puts first."""
    raw = bytes.fromhex(data)
    with _socket(protocol, address, timeout) as made:
        made.connect((address, port))
        made.sendall(struct.pack("!H", len(raw)) + raw if protocol == "tcp" else raw)
        return made.recv(65536).hex()


def send(protocol: str, address: str, port: int, text: str = "hello", count: int = 1) -> int:
    """Send datagrams and wait for nothing; how many the kernel took."""
    del protocol
    taken = 0
    with _socket("udp", address, 1.0) as made:
        for _ in range(count):
            with contextlib.suppress(OSError):
                made.sendto(text.encode(), (address, port))
                taken += 1
    return taken


def dial(protocol: str, address: str, port: int, timeout: float = 2.0) -> int:
    """Connect and keep it; returns a handle."""
    made = _socket(protocol, address, timeout)
    try:
        made.connect((address, port))
    except OSError:
        made.close()
        raise
    _handles[made.fileno()] = made
    return made.fileno()


def say(handle: int, text: str = "hello", timeout: float = 2.0) -> str:
    """Send by a kept connection and return the answer; the end of the stream is an error."""
    made = _handles[handle]
    made.settimeout(timeout)
    made.sendall(text.encode())
    return hear(handle, timeout)


def hear(handle: int, timeout: float = 2.0) -> str:
    """Wait for bytes on a kept connection; the end of the stream is an error."""
    made = _handles[handle]
    made.settimeout(timeout)
    data = made.recv(65536)
    if not data and made.type == socket.SOCK_STREAM:
        raise EOFError
    return data.decode()


def hang_up(handle: int) -> None:
    """Close a kept connection."""
    _handles.pop(handle).close()


def local_port(handle: int) -> int:
    """The port of this side."""
    return int(_handles[handle].getsockname()[1])


def dial_many(
    protocol: str, address: str, port: int, count: int, timeout: float = 1.0
) -> dict[str, int]:
    """Connect many times and keep all; how often each outcome came."""
    outcomes: dict[str, int] = {}
    for _ in range(count):
        try:
            dial(protocol, address, port, timeout)
            outcome = "connected"
        except OSError as error:
            outcome = _name(error)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def listen(protocol: str, address: str, port: int) -> int:
    """Listen and keep it; returns a handle."""
    made = _socket(protocol, address, 2.0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    if protocol == "tcp":
        made.listen()
    _handles[made.fileno()] = made
    return made.fileno()


def accept(handle: int, timeout: float = 2.0) -> str:
    """Accept one connection, send a greeting, and say who came."""
    listener = _handles[handle]
    listener.settimeout(timeout)
    connection, peer = listener.accept()
    with connection:
        connection.sendall(b"inside")
    return str(peer[0])


def ping(address: str, timeout: float = 1.0) -> str:
    """One ICMP echo by an unprivileged ping socket."""
    six = ":" in address
    family, protocol = (socket.AF_INET6, 58) if six else (socket.AF_INET, 1)
    with socket.socket(family, socket.SOCK_DGRAM, protocol) as made:
        made.settimeout(timeout)
        made.sendto(bytes([128 if six else 8, 0, 0, 0, 0, 1, 0, 1]) + b"ping", (address, 0))
        return made.recv(1024).hex()


def make(family: int, kind: int, protocol: int = 0) -> bool:
    """Make a socket of some kind."""
    socket.socket(family, kind, protocol).close()
    return True


def raw(number: int, address: str, data: str) -> int:
    """Send by a raw IPv4 socket of a protocol; needs NET_RAW."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, number) as made:
        return made.sendto(bytes.fromhex(data), (address, 0))


def frame(device: str, data: str) -> int:
    """Send a frame by a packet socket; needs NET_RAW."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as made:
        made.bind((device, 0))
        return made.send(bytes.fromhex(data))


def flood_ids(addresses: list[str], first: int, last: int, count: int, data: str) -> int:
    """Send DNS answers with every id below `count` to ports; `data` follows the id."""
    taken = 0
    body = bytes.fromhex(data)
    for address in addresses:
        with _socket("udp", address, 1.0) as made:
            for port in range(first, last + 1):
                for number in range(count):
                    with contextlib.suppress(OSError):
                        made.sendto(struct.pack("!H", number) + body, (address, port))
                        taken += 1
    return taken


def set_user(uid: int) -> int:
    """Become another user."""
    os.setuid(uid)
    return os.getuid()


def unshare(flags: int) -> bool:
    """Make namespaces."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
    return True


def status() -> dict[str, str]:
    """The lines of /proc/self/status that tell its power."""
    wanted = ("Uid", "CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    lines = Path("/proc/self/status").read_text().splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {key: value.strip() for key, value in pairs if key in wanted}


def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def busy(protocol: str, address: str, port: int, seconds: float) -> int:
    """Try to send without a pause from now on; how often."""
    tries = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with _socket(protocol, address, 0.01) as made, contextlib.suppress(OSError):
            made.connect((address, port))
            made.send(b"busy")
        tries += 1
    return tries


_DEEDS: dict[str, Any] = {
    deed.__name__: deed
    for deed in (
        accept, busy, dial, dial_many, exchange, exchange_hex, flood_ids, frame, hang_up, hear,
        listen, local_port, make, ping, raw, read, say, send, set_user, status, unshare,
    )
}  # fmt: skip


def _name(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "TIMEOUT"
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__


def _do(line: str) -> dict[str, Any]:
    wish = json.loads(line)
    try:
        return {"value": _DEEDS[wish.pop("do")](**wish)}
    except Exception as error:  # noqa: BLE001 - every outcome is a result here
        return {"error": _name(error)}


def main() -> None:
    """Serve wishes until standard input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_do(line)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
