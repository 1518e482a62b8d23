"""Count what arrives at a device: the far side's word that nothing came.

Frames are read by a packet socket before any filter sees them. Packets of one link arrive in
order: when a packet sent later was seen, what was not seen before it never came.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from ipaddress import IPv4Address, IPv6Address

    from tests.lab.netns import Namespace

__all__ = ["Arrival", "Sniffer", "open_sniffer"]

_ALL = 0x0003
_OUTGOING = 4
_ARP, _V4, _V6 = 0x0806, 0x0800, 0x86DD
_PROTOCOLS = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
_HEAD = 256
_SOL_PACKET, _STATISTICS = 263, 6
_RECEIVE_BUFFER_FORCE = 33
_BUFFER_BYTES = 64 << 20


@dataclass(frozen=True)
class Arrival:
    """A packet that arrived; `protocol` is `arp` or hexadecimal for other frames."""

    protocol: str
    source: IPv4Address | IPv6Address | None = None
    address: IPv4Address | IPv6Address | None = None
    source_port: int = 0
    port: int = 0
    size: int = 0
    payload: bytes = b""


class Sniffer:
    """What has arrived at a device so far; read by the thread that asks."""

    def __init__(self, tap: socket.socket) -> None:
        """Read from a packet socket."""
        self._tap = tap
        self._arrivals: list[Arrival] = []

    def clear(self) -> None:
        """Forget what has arrived."""
        self._read()
        self._arrivals.clear()

    def packets(
        self, address: str | None = None, protocol: str | None = None, port: int | None = None
    ) -> list[Arrival]:
        """IP packets that arrived, of one destination, protocol or port alone."""
        self._read()
        wanted = None if address is None else ip_address(address)
        return [
            each
            for each in self._arrivals
            if each.address is not None
            and wanted in (None, each.address)
            and protocol in (None, each.protocol)
            and port in (None, each.port)
        ]

    def wait(
        self,
        address: str | None = None,
        protocol: str | None = None,
        port: int | None = None,
        *,
        count: int = 1,
        timeout: float = 3.0,
    ) -> list[Arrival]:
        """Wait until enough such packets have arrived; the last word on what came before."""
        self._wait(lambda: len(self.packets(address, protocol, port)) >= count, timeout)
        return self.packets(address, protocol, port)

    def wait_frames(self, protocol: str, *, timeout: float = 3.0) -> None:
        """Wait until a frame of a protocol has arrived, such as `arp`."""
        self._wait(lambda: any(each.protocol == protocol for each in self._arrivals), timeout)

    def _wait(self, condition: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            assert left > 0, f"it did not arrive; seen: {self._arrivals[-20:]}"
            select.select([self._tap], [], [], left)
            self._read()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, origin = self._tap.recvfrom(_HEAD)
                if origin[2] != _OUTGOING:
                    self._arrivals.append(_parse(frame))
        _, dropped = struct.unpack("=II", self._tap.getsockopt(_SOL_PACKET, _STATISTICS, 8))
        assert not dropped, f"{dropped} frames came too fast to be counted"


@contextlib.contextmanager
def open_sniffer(namespace: Namespace, device: str) -> Generator[Sniffer, None, None]:
    """Watch the frames that come in by a device, until the end."""
    with namespace.inside(lambda: _open_tap(device)) as tap:
        yield Sniffer(tap)


def _open_tap(device: str) -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    tap.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, _BUFFER_BYTES)
    tap.bind((device, _ALL))
    tap.setblocking(False)
    return tap


def _parse(frame: bytes) -> Arrival:
    kind = int.from_bytes(frame[12:14], "big")
    body = frame[14:]
    if kind == _V4:
        return _parse_ip(body[9], body[12:16], body[16:20], body[(body[0] & 15) * 4 :], len(frame))
    if kind == _V6:
        return _parse_ip(body[6], body[8:24], body[24:40], body[40:], len(frame))
    return Arrival("arp" if kind == _ARP else hex(kind), size=len(frame))


def _parse_ip(number: int, source: bytes, address: bytes, rest: bytes, size: int) -> Arrival:
    protocol = _PROTOCOLS.get(number, str(number))
    ports = (0, 0)
    if protocol in ("tcp", "udp") and len(rest) >= 4:
        ports = struct.unpack_from("!HH", rest)
    return Arrival(
        protocol, ip_address(source), ip_address(address), ports[0], ports[1], size, rest[8:]
    )
