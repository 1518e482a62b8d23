"""The plan of a sandbox as values: printable, comparable, without any I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.policy import Limits, Policy
    from sandboxed_mcp.config.resolved import ResolvedMount, ResolvedSecret

__all__ = [
    "GATEWAY_IMAGE",
    "HOME",
    "LABEL_LAUNCH",
    "LABEL_NETWORK",
    "LABEL_OWNER",
    "LABEL_ROLE",
    "LABEL_SECRETS",
    "LABEL_SERVER",
    "SECRETS_TARGET",
    "GatewayPlan",
    "ImageFacts",
    "LaunchIdentity",
    "SandboxPlan",
]

LABEL_LAUNCH: Final = "sandboxed-mcp.launch"
LABEL_SERVER: Final = "sandboxed-mcp.server"
LABEL_OWNER: Final = "sandboxed-mcp.owner"
LABEL_ROLE: Final = "sandboxed-mcp.role"
LABEL_NETWORK: Final = "sandboxed-mcp.network"
LABEL_SECRETS: Final = "sandboxed-mcp.secrets"

GATEWAY_IMAGE: Final = "sandboxed-mcp/gateway:latest"
HOME: Final = "/tmp"  # noqa: S108 - the scratch tmpfs inside the container, not the host's
SECRETS_TARGET: Final = "/run/secrets"


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the engine knows of an image.

    Attributes:
        reference: The name as configured.
        id: The content id (`sha256:...`); containers are created from it, not from the name.
        env: The image's own environment, in its order.
        volumes: Paths the image declares as `VOLUME`.
        workdir: The image's `WORKDIR`, or an empty string.
        entrypoint: The image's `ENTRYPOINT`.
        command: The image's `CMD`.
    """

    reference: str
    id: str
    env: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchIdentity:
    """Who starts what.

    Attributes:
        launch: 32 hexadecimal digits, new for every launch.
        owner: The launcher's process, as `machine/boot/pid-namespace/pid/start`.
        secrets_dir: The folder that holds the secret files; None when there are none.
        host_addresses: The launching machine's own addresses: no name ever opens them.
    """

    launch: str
    owner: str
    secrets_dir: str | None = None
    host_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """The container that owns the sandbox's network namespace and decides what leaves it.

    Attributes:
        image: The gateway's image.
        labels: Labels of the container.
        control: The first control line: the policy that it enforces, or observes under.
        host_addresses: The launching machine's own addresses, for later policies.
    """

    image: ImageFacts
    labels: Mapping[str, str]
    control: Mapping[str, Any]
    host_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """One server's sandbox: a container without network, or a pod of gateway and server.

    Attributes:
        server: The configured name.
        image: The image as configured and its content id.
        entrypoint: Replaces the image's entrypoint; None keeps it.
        args: Replaces the image's command; None keeps it.
        env: The declared variables and the minimum, without secrets.
        secrets: The declared secrets; their values are hidden from `repr`.
        cwd: Working directory in the container; None keeps the image's.
        mounts: Host folders and files.
        volumes: Paths of the image's `VOLUME`s, covered by bounded scratch space.
        policy: What the server may use.
        labels: Labels of the container.
        secrets_dir: Host folder behind `/run/secrets`; None when no secret is a file.
        gateway: The gateway; None for an offline sandbox.
    """

    server: str
    image: ImageFacts
    entrypoint: tuple[str, ...] | None
    args: tuple[str, ...] | None
    env: Mapping[str, str]
    secrets: tuple[ResolvedSecret, ...]
    cwd: str | None
    mounts: tuple[ResolvedMount, ...]
    volumes: tuple[str, ...]
    policy: Policy
    labels: Mapping[str, str]
    secrets_dir: str | None
    gateway: GatewayPlan | None = None

    @property
    def launch(self) -> str:
        """The launch id."""
        return self.labels[LABEL_LAUNCH]

    @property
    def limits(self) -> Limits:
        """The policy's limits."""
        return self.policy.limits

    @property
    def network(self) -> str:
        """What the server can reach: `none`, `rules`, `unrestricted` or `observed`."""
        return self.labels[LABEL_NETWORK]
