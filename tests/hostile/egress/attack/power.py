"""Reaching for the packet filter and the network below it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_NETFILTER, _ROUTE = 12, 0
_REQUEST, _DUMP, _ACK, _CREATE = 1, 0x300, 4, 0x400
_NFT, _CTNETLINK = 10, 1
_NEWTABLE, _GETTABLE, _DELTABLE = 0, 1, 2
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_DELLINK, _NEWROUTE, _NEWADDR = 17, 24, 20


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


def _netlink(family: int, message: bytes) -> str:
    """Send a message; `ok`, or the error that the kernel answers, to the socket or to it."""
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    with opened as made:
        made.settimeout(2)
        made.sendto(message, (0, 0))
        answer = made.recv(1 << 16)
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind != 2:
        return "ok"
    (number,) = struct.unpack_from("=i", answer, 16)
    return "ok" if number == 0 else errno.errorcode[-number]


def list_tables() -> str:
    """What `nft list tables` does."""
    body = struct.pack("=BBH", 0, 0, 0)
    return _netlink(_NETFILTER, _message(_NFT << 8 | _GETTABLE, _REQUEST | _DUMP, body))


def delete_tables() -> str:
    """What `nft flush ruleset` does."""
    return _netlink(_NETFILTER, _batch(_DELTABLE, b""))


def add_table() -> str:
    """What `nft add table` does."""
    return _netlink(_NETFILTER, _batch(_NEWTABLE, _attribute(1, b"hostile\0")))


def _batch(kind: int, attributes: bytes) -> bytes:
    frame = struct.pack("=BBH", 0, 0, socket.htons(_NFT))
    flags = _REQUEST | _ACK | (_CREATE if kind == _NEWTABLE else 0)
    body = struct.pack("=BBH", 1, 0, 0) + attributes
    return (
        _message(_BATCH_BEGIN, _REQUEST, frame)
        + _message(_NFT << 8 | kind, flags, body)
        + _message(_BATCH_END, _REQUEST, frame)
    )


def list_flows() -> str:
    """What `conntrack -L` does."""
    body = struct.pack("=BBH", 2, 0, 0)
    return _netlink(_NETFILTER, _message(_CTNETLINK << 8 | 1, _REQUEST | _DUMP, body))


def listen_to_log() -> str:
    """Take the place of whoever hears of denied packets."""
    command = _attribute(1, b"\1")
    body = struct.pack("=BBH", 0, 0, socket.htons(7)) + command
    return _netlink(_NETFILTER, _message(4 << 8 | 1, _REQUEST | _ACK, body))


def delete_link() -> str:
    """Delete eth0."""
    body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex("eth0"), 0, 0)
    return _netlink(_ROUTE, _message(_DELLINK, _REQUEST | _ACK, body))


def add_address() -> str:
    """Give eth0 another address."""
    address = socket.inet_aton("198.51.100.250")
    body = struct.pack("=BBBBI", 2, 32, 0, 0, socket.if_nametoindex("eth0"))
    body += _attribute(1, address) + _attribute(2, address)
    return _netlink(_ROUTE, _message(_NEWADDR, _REQUEST | _ACK | _CREATE, body))


def add_route() -> str:
    """Add a route."""
    body = struct.pack("=8BI", 2, 32, 0, 0, 254, 4, 0, 1, 0)
    body += _attribute(1, socket.inet_aton("198.51.100.66"))
    body += _attribute(4, struct.pack("=I", socket.if_nametoindex("eth0")))
    return _netlink(_ROUTE, _message(_NEWROUTE, _REQUEST | _ACK | _CREATE, body))


def shut_link() -> str:
    """Take eth0 down, by the old interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        try:
            fcntl.ioctl(made, 0x8914, struct.pack("16sh14x", b"eth0", 0))
        except OSError as error:
            return errno.errorcode[error.errno or 0]
    return "ok"


def enter(path: str) -> str:
    """Join a network namespace by its file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        return "ok" if libc.setns(descriptor, 0) == 0 else errno.errorcode[ctypes.get_errno()]
    finally:
        os.close(descriptor)


def enable_ipv6() -> str:
    """Switch IPv6 on at eth0."""
    try:
        with open("/proc/sys/net/ipv6/conf/eth0/disable_ipv6", "w") as file:  # noqa: PTH123
            file.write("0")
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def option(level: int, name: int, value: int) -> str:
    """Set an option of an IPv4 socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        try:
            made.setsockopt(level, name, value)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
    return "ok"


def own_address() -> str:
    """The address of eth0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        answer = fcntl.ioctl(made, 0x8915, struct.pack("256s", b"eth0"))
    return socket.inet_ntoa(answer[20:24])


def environment() -> dict[str, str]:
    """The environment."""
    return dict(os.environ)


def transport(kind: int, protocol: int, address: str, port: int) -> str:
    """Connect by a transport other than TCP and UDP, and send; `ok` or the error."""
    try:
        with socket.socket(socket.AF_INET, kind, protocol) as made:
            made.settimeout(1)
            made.connect((address, port))
            made.send(b"other")
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "TIMEOUT")
    return "ok"


def send_to_all_nodes() -> int:
    """Send to every IPv6 node of the link."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as made:
        return made.sendto(b"all", ("ff02::1", 5353, 0, socket.if_nametoindex("eth0")))


def shout(address: str, port: int) -> int:
    """Send to many at once."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        return made.sendto(b"all", (address, port))


def send_with(level: int, option: int, address: str, port: int) -> str:
    """Set an option that a privileged program uses to get past filters, then send."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        try:
            made.setsockopt(level, option, 0x4000_5347)
            made.sendto(b"marked", (address, port))
        except OSError as error:
            return errno.errorcode[error.errno or 0]
    return "ok"


def send_by_device(address: str, port: int) -> int:
    """Send by a socket that is bound to the link."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0")
        return made.sendto(b"bound", (address, port))


def send_routed(address: str, via: str, kind: str) -> str:
    """Send with an IP option that leads by another address (RFC 791)."""
    option = bytes.fromhex(kind) + bytes((7, 4)) + socket.inet_aton(via) + b"\0"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        try:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, option)
            made.sendto(b"routed", (address, 5432))
        except OSError as error:
            return errno.errorcode[error.errno or 0]
    return "ok"


def fast_open(address: str, port: int) -> int:
    """Send data with the first segment of a connection (RFC 7413)."""
    with socket.socket() as made:  # with a timeout it would not wait for the outcome
        return made.sendto(b"early", 0x2000_0000, (address, port))


def processes() -> str:
    """The command lines of every process that is visible."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
    return "\n".join(found)


def visible_of_others() -> list[int]:
    """Processes beside this one, its parent and the first that a signal would reach."""
    found: list[int] = []
    for number in range(2, 4096):
        try:
            os.kill(number, 0)
        except OSError:
            continue
        if number not in {os.getpid(), os.getppid()}:
            found.append(number)
    return found
