"""The engine's bridge attached to the simulated internet, and shut to everything else.

While it is attached, containers on the bridge reach the laboratory's addresses and nothing
besides: a guard on the host drops, and counts, every other packet that comes from the bridge.
Only one test run at a time holds the bridge; the others wait. The routes of the laboratory's
networks lead into it for the whole machine meanwhile.

Image builds that need the network fail while the guard stands; they can take the same lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.internet import HELD
from tests.lab.netns import run_batch
from tests.lab.sniffer import open_sniffer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from tests.lab.internet import Internet
    from tests.lab.sniffer import Sniffer

__all__ = ["Bridge", "hold_bridge", "open_bridge"]


LOCK_TIMEOUT = 300.0
_NAMED = Path("/run/netns")
_TABLE = "smcp_lab_guard"
_HOST, _LAB = "198.19.255.1", "198.19.255.2"
_PREFIX = 30


@dataclass(frozen=True)
class Bridge:
    """The attached bridge.

    Attributes:
        device: Its device on the host.
        address: The host's address on it.
        wire: What came from the host's side into the laboratory. Sources are rewritten.
    """

    device: str
    address: str
    wire: Sniffer

    def count_strays(self) -> int:
        """Packets from the bridge that wanted to go elsewhere and were dropped."""
        done = subprocess.run(
            ["nft", "list", "table", "inet", _TABLE], capture_output=True, text=True, check=True
        )
        return sum(int(number) for number in re.findall(r"packets (\d+)", done.stdout))


@contextlib.contextmanager
def open_bridge(internet: Internet, *, exempt: Sequence[str] = ()) -> Generator[Bridge, None, None]:
    """Attach the engine's default bridge until the end.

    Args:
        internet: The laboratory.
        exempt: Addresses beside it that the guard lets through.
    """
    device, address = _find_bridge()
    transit = f"smcp{os.getpid()}"
    with hold_bridge(), _guard(device, address, transit, exempt):
        run_batch(
            [f"link add {transit} type veth peer name host netns {internet.namespace.name}"],
        )
        try:
            internet.namespace.ip("link set host up", f"addr add {_LAB}/{_PREFIX} dev host")
            run_batch(
                [
                    f"link set {transit} up",
                    f"addr add {_HOST}/{_PREFIX} dev {transit}",
                    *(
                        f"route add {network} via {_LAB}"
                        for network in HELD
                        if network.version == 4
                    ),
                ]
            )
            with open_sniffer(internet.namespace, "host") as wire:
                yield Bridge(device, address, wire)
        finally:
            run_batch([f"link del {transit}"])


@contextlib.contextmanager
def hold_bridge() -> Generator[None, None, None]:
    """Keep others from attaching the bridge, or wait until they are done."""
    lock = _find_lock()
    with lock.open("w") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{lock} is held by another test run") from None
            time.sleep(0.1)  # noqa: TID251 - bounded; another process cannot wake us
        yield


@contextlib.contextmanager
def _guard(
    device: str, address: str, transit: str, exempt: Sequence[str]
) -> Generator[None, None, None]:
    allowed = "".join(f"    ip daddr {each} accept\n" for each in exempt)
    text = f"""
add table inet {_TABLE}
delete table inet {_TABLE}
table inet {_TABLE} {{
  chain forward {{
    type filter hook forward priority -200; policy accept;
    iifname != "{device}" accept
    oifname {{ "{device}", "{transit}" }} accept
{allowed}    counter drop
  }}
  chain input {{
    type filter hook input priority -200; policy accept;
    iifname != "{device}" accept
    ip daddr {address} accept
    ct state established accept
    meta l4proto {{ icmpv6, igmp }} drop
    counter drop
  }}
}}
"""
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, timeout=10)
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "inet", _TABLE], check=True, timeout=10)


def _find_bridge() -> tuple[str, str]:
    done = subprocess.run(
        ["docker", "network", "inspect", "bridge"], capture_output=True, text=True, check=True
    )
    network = json.loads(done.stdout)[0]
    # Podman does not name the device; it is the one that holds the network's gateway.
    named = network["Options"].get("com.docker.network.bridge.name")
    gateway = network["IPAM"]["Config"][0].get("Gateway")
    shown = subprocess.run(
        ["ip", "-j", "-4", "addr", "show"], capture_output=True, text=True, check=True
    )
    ((device, address),) = [
        (link["ifname"], address["local"])
        for link in json.loads(shown.stdout)
        for address in link["addr_info"]
        if (link["ifname"] == named if named else address["local"] == gateway)
    ]
    return device, address


def _find_lock() -> Path:
    """The machine's; an engine in a named network namespace has its own bridge, and a lock too."""
    own = Path("/proc/self/ns/net").stat()
    named = [path for path in _NAMED.glob("*") if path.stat().st_ino == own.st_ino]
    return Path("/run", f"smcp-lab-bridge{f'-{named[0].name}' if named else ''}.lock")
