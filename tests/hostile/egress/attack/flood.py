"""Quantity: packets without a pause, flows by the thousand."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

_kept: list[socket.socket] = []
_running: list[tuple[threading.Thread, list[Any]]] = []


def send_eagerly(address: str, port: int, seconds: float) -> int:
    """Send datagrams and open connections without a pause; how many calls succeeded."""
    taken = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with made, contextlib.suppress(OSError):
            taken += bool(made.sendto(b"first", (address, port)))
        with socket.socket() as made:
            made.settimeout(0.05)
            taken += made.connect_ex((address, port)) == 0
    return taken


def send_many(address: str, port: int, count: int) -> dict[str, int]:
    """Send datagrams by one socket; how many were taken and refused."""
    taken = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        for _ in range(count):
            with contextlib.suppress(OSError):
                taken += bool(made.sendto(b"flood", (address, port)))
    return {"taken": taken, "refused": count - taken}


def open_flows(address: str, first: int, last: int, sockets: int) -> dict[str, int]:
    """Open a UDP flow from each of some sockets to each port; how many were taken."""
    taken = refused = 0
    for _ in range(sockets):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        _kept.append(made)
        for port in range(first, last + 1):
            try:
                made.sendto(b"flow", (address, port))
                taken += 1
            except OSError:
                refused += 1
    return {"taken": taken, "refused": refused}


def start(module: str, deed: str, **arguments: object) -> int:
    """Do something on a thread; gives its number."""
    import importlib

    outcome: list[Any] = []
    work = getattr(importlib.import_module(module), deed)
    thread = threading.Thread(target=lambda: outcome.append(work(**arguments)))
    thread.start()
    _running.append((thread, outcome))
    return len(_running) - 1


def finish(number: int) -> Any:
    """Wait for what was started; its outcome."""
    thread, outcome = _running[number]
    thread.join()
    return outcome[0]


def claim_memory(size: int) -> int:
    """Hold memory that is really used."""
    _hoard.append(bytearray(b"x" * size))
    return len(_hoard)


_hoard: list[bytearray] = []
