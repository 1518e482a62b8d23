"""What the config stage hands to the plan: one server, with nothing left to look up.

Every secret has its value, every mount its real source, the policy is read. Plain dataclasses:
whoever reads them needs no pydantic. Secret values never show in a `repr`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.policy import Policy

__all__ = [
    "Delivery",
    "Relabel",
    "ResolvedAudit",
    "ResolvedMount",
    "ResolvedSecret",
    "ResolvedServer",
]

Delivery = Literal["env", "file"]
Relabel = Literal["shared", "private"]


@dataclass(frozen=True, slots=True)
class ResolvedSecret:
    """A secret with its value.

    Attributes:
        name: The environment variable, or the file's name below `/run/secrets`.
        value: The value; never shown.
        delivery: `env` or `file`.
    """

    name: str
    value: str = field(repr=False)
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class ResolvedMount:
    """A file or folder of the host that the server sees.

    Attributes:
        source: The real path on the host: absolute, no symbolic link in it.
        target: The absolute path in the sandbox.
        read_only: Whether the server may only read it.
        relabel: SELinux relabelling: `shared`, `private` or None for none.
        written: The source as the user wrote it.
    """

    source: str
    target: str
    read_only: bool
    relabel: Relabel | None
    written: str


@dataclass(frozen=True, slots=True)
class ResolvedAudit:
    """The file that every event is recorded in.

    Attributes:
        path: An absolute path.
        setting: What names it, for error messages.
        file: The configuration file that names it; None for arguments and code.
    """

    path: str
    setting: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedServer:
    """A server, ready to be planned.

    Attributes:
        name: Its configured name.
        image: The image's reference as configured.
        entrypoint: Replaces the image's entrypoint (and drops its CMD); None keeps it.
        args: Replaces the image's CMD; None keeps it. Never None beside an entrypoint.
        env: The declared variables, secrets not among them.
        secrets: The secrets, in the order declared.
        cwd: The working directory inside; None keeps the image's.
        mounts: The declared mounts, checked.
        policy: What it is granted; `user` is always `uid:gid` here.
        origin: The file that holds it; None for arguments and code.
        audit: The audit log; None for none.
    """

    name: str
    image: str
    entrypoint: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secrets: tuple[ResolvedSecret, ...] = ()
    cwd: str | None = None
    mounts: tuple[ResolvedMount, ...] = ()
    policy: Policy = field(kw_only=True)
    origin: str | None = None
    audit: ResolvedAudit | None = None
