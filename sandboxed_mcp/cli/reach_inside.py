"""What `policy test` runs in its sandbox: tries each destination and prints what came of it.

The source of this file is run as `python3 -I -c SOURCE JSON`, so it stands alone. JSON is a list
of `{"id", "host", "port", "protocol", "tls"}`: `tls` is the TLS server name to show, or null for
none. `@gateway` as host is the address of this host on the network. It prints a line for each:
`{"id", "reached", "address", "outcome"}`. It sends nothing but what opens a conversation.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SECONDS = 5.0
QUIET_SECONDS = 1.5
AT_ONCE = 16
GATEWAY_FLAG = 0x2


def main() -> None:
    """Tries all, some at a time."""
    places: list[dict[str, Any]] = json.loads(sys.argv[1])
    printing = threading.Lock()

    def work() -> None:
        while True:
            try:
                place = places.pop(0)
            except IndexError:
                return
            found = {"id": place["id"], **attempt(place)}
            with printing:
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()

    threads = [threading.Thread(target=work) for _ in range(min(AT_ONCE, len(places)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def attempt(place: dict[str, Any]) -> dict[str, Any]:
    """Tries one destination."""
    address = ""
    try:
        family, address = look_up(place["host"])
        if place["protocol"] == "udp":
            return try_udp(family, address, place["port"])
        return try_tcp(family, address, place["port"], place["tls"])
    except socket.gaierror as error:
        return told(address, f"no address: {error.strerror}")
    except ssl.SSLError as error:
        return told(address, f"TLS: {error.reason or error}")
    except TimeoutError:
        return told(address, "no answer")
    except OSError as error:
        return told(address, error.strerror or str(error))


def look_up(host: str) -> tuple[int, str]:
    """The first address of a host."""
    if host == "@gateway":
        host = find_gateway()
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    return found[0], str(found[4][0])


def find_gateway() -> str:
    """The address of the default route (proc_net_route); this host, for a container."""
    for line in Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if fields[1] == "00000000" and int(fields[3], 16) & GATEWAY_FLAG:
            return socket.inet_ntoa(struct.pack("=I", int(fields[2], 16)))
    raise OSError(0, "there is no route")


def try_tcp(family: int, address: str, port: int, tls: str | None) -> dict[str, Any]:
    """Connects, and opens TLS if a name is to be shown; the certificate is nobody's business."""
    with socket.socket(family, socket.SOCK_STREAM) as plain:
        plain.settimeout(SECONDS)
        plain.connect((address, port))
        if tls is None:
            return told(address, "connected", reached=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # nothing is said after the handshake
        with context.wrap_socket(plain, server_hostname=tls) as secured:
            return told(address, f"connected, {secured.version()}", reached=True)


def try_udp(family: int, address: str, port: int) -> dict[str, Any]:
    """Sends a datagram and waits a little: few protocols answer one that is not theirs."""
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(QUIET_SECONDS)
        datagrams.connect((address, port))
        datagrams.send(b"?")
        datagrams.recv(1)
        return told(address, "answered", reached=True)


def told(address: str, outcome: str, *, reached: bool = False) -> dict[str, Any]:
    """A result."""
    return {"reached": reached, "address": address, "outcome": outcome}


if __name__ == "__main__":
    main()
