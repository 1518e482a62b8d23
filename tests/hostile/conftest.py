"""Fixtures of the hostile suite: the arena, and one attacker on each side of the fence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hostile.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.wire import Wire

ATTACK = Path(__file__).with_name("attack")
UNCONFINED = ("seccomp", "apparmor", "systempaths")
CAPABILITIES = {
    "DAC_READ_SEARCH": 2,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_MODULE": 16,
    "SYS_RAWIO": 17,
    "SYS_CHROOT": 18,
    "SYS_PTRACE": 19,
    "SYS_PACCT": 20,
    "SYS_ADMIN": 21,
    "SYS_BOOT": 22,
    "SYS_NICE": 23,
    "SYS_TTY_CONFIG": 26,
    "MKNOD": 27,
    "SETFCAP": 31,
    "SYSLOG": 34,
}


@pytest.fixture(scope="session")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    """Starts hostile servers; their source is copied to where the server's user may read it."""
    folder = tmp_path_factory.mktemp("arena")
    attack = folder / "attack"
    shutil.copytree(ATTACK, attack, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (attack, *attack.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return Arena(attack, folder)


@pytest.fixture(scope="session")
def inside(arena: Arena) -> Generator[Wire]:
    """An attacker in a sandbox with the default policy."""
    with arena.hostile(tag="inside").open() as wire:
        yield wire


@pytest.fixture(scope="session")
def inside_as_root(arena: Arena) -> Generator[Wire]:
    """An attacker in a sandbox whose policy makes it root, the most it can be."""
    with arena.hostile(tag="root", policy={"user": "0:0"}).open() as wire:
        yield wire


@pytest.fixture(scope="session")
def outside(arena: Arena) -> Generator[Wire]:
    """The same attacker with every protection removed, in the host's process namespace.

    Not `--privileged`: that fails on a host that lacks one of the capabilities itself.
    """
    unconfined = [f"--security-opt={what}=unconfined" for what in UNCONFINED]
    capabilities = [f"--cap-add={name}" for name in list_capabilities()]
    with arena.open_exposed(
        "--pid=host",
        "--network=none",
        "--user=0",
        "--ulimit=nofile=4096:4096",
        "--device=/dev/kmsg",
        "--device=/dev/loop-control",
        "--volume=/sys:/sys",
        *unconfined,
        *capabilities,
    ) as wire:
        yield wire


def list_capabilities() -> list[str]:
    """Names of the capabilities that this host has to give, of those that the probes use."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (held,) = (int(line.split()[1], 16) for line in status.splitlines() if "CapBnd" in line)
    return [name for name, number in CAPABILITIES.items() if held >> number & 1]
