"""What shall run, decided from the settings and what the engine knows of the images."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from sandboxed_mcp.egress.rules import AddressRule, Unrestricted, render_egress
from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.plan.values import (
    HOME,
    LABEL_LAUNCH,
    LABEL_NETWORK,
    LABEL_OWNER,
    LABEL_ROLE,
    LABEL_SECRETS,
    LABEL_SERVER,
    SECRETS_TARGET,
    GatewayPlan,
    ImageFacts,
    LaunchIdentity,
    SandboxPlan,
)

if TYPE_CHECKING:
    from sandboxed_mcp.config.policy import Policy
    from sandboxed_mcp.config.resolved import ResolvedServer

__all__ = ["control_line", "plan_sandbox"]

FIRST_GENERATION: Final = 1


def plan_sandbox(
    server: ResolvedServer,
    image: ImageFacts,
    who: LaunchIdentity,
    *,
    gateway: ImageFacts | None = None,
    observe: bool = False,
) -> SandboxPlan:
    """The sandbox that the settings ask for.

    Args:
        server: Resolved settings.
        image: What the engine knows of `server.image`.
        who: The launch id and the launching process.
        gateway: What the engine knows of the gateway's image; None for an offline sandbox.
        observe: Whether nothing may leave, and what the server wants is recorded.

    Raises:
        ConfigError: The image asks for something unsafe.
    """
    _refuse_workdir(server, image)
    network = _describe_network(server.policy, gateway is not None, observe=observe)
    minimum = {"HOME": HOME, "HOSTNAME": "sandbox"}
    return SandboxPlan(
        server=server.name,
        image=image,
        entrypoint=server.entrypoint,
        args=server.args,
        env={**minimum, **server.env},
        secrets=server.secrets,
        cwd=server.cwd,
        mounts=server.mounts,
        volumes=_scratch_volumes(server, image),
        policy=server.policy,
        labels=_labels(server, who, "server", network),
        secrets_dir=who.secrets_dir,
        gateway=None
        if gateway is None
        else GatewayPlan(
            image=gateway,
            labels=_labels(server, who, "gateway", network),
            control=control_line(
                server.policy,
                FIRST_GENERATION,
                observe=observe,
                first=True,
                host_addresses=who.host_addresses,
            ),
            host_addresses=who.host_addresses,
        ),
    )


def control_line(
    policy: Policy,
    generation: int,
    *,
    observe: bool = False,
    first: bool = False,
    host_addresses: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The line that puts a policy in force in the gateway.

    Args:
        policy: The policy.
        generation: Counts the policies of a sandbox, from 1.
        observe: Whether nothing may leave, whatever the rules say.
        first: Whether it is the sandbox's first policy.
        host_addresses: The launching machine's own: shut, but for those that a rule spells out.
    """
    rules = () if isinstance(policy.egress, Unrestricted) else policy.egress
    spelled = {
        str(rule.network.network_address)
        for rule in rules
        if isinstance(rule, AddressRule) and rule.single
    }
    return {
        "control": "policy" if first else "update",
        "generation": generation,
        "mode": "observe" if observe else "enforce",
        "egress": render_egress(policy.egress),
        "dns": list(policy.dns),
        "forbidden": [address for address in host_addresses if address not in spelled],
    }


def _describe_network(policy: Policy, has_gateway: bool, *, observe: bool) -> str:
    """What the server can reach: `none`, `rules`, `unrestricted` or `observed`."""
    if not has_gateway:
        return "none"
    if observe:
        return "observed"
    return "unrestricted" if isinstance(policy.egress, Unrestricted) else "rules"


def _labels(server: ResolvedServer, who: LaunchIdentity, role: str, network: str) -> dict[str, str]:
    return {
        LABEL_LAUNCH: who.launch,
        LABEL_SERVER: server.name,
        LABEL_OWNER: who.owner,
        LABEL_ROLE: role,
        LABEL_NETWORK: network,
        LABEL_SECRETS: ",".join(s.name for s in server.secrets if s.delivery == "env"),
    }


def _scratch_volumes(server: ResolvedServer, image: ImageFacts) -> tuple[str, ...]:
    covered = {HOME, SECRETS_TARGET, *(mount.target for mount in server.mounts)}
    for path in image.volumes:
        if path != str(PurePosixPath(path)) or not _is_plain(path) or _is_system(path):
            raise _image_error(server, f"declares VOLUME '{path}', which the sandbox cannot bound")
    return tuple(path for path in sorted(image.volumes) if path not in covered)


def _refuse_workdir(server: ResolvedServer, image: ImageFacts) -> None:
    # A WORKDIR below /proc/self/fd is how CVE-2024-21626 leaves the container.
    path = server.cwd or image.workdir
    if path and path != "/" and (not _is_plain(path) or _is_system(path)):
        raise _image_error(server, f"has the working directory '{path}'")


def _is_plain(path: str) -> bool:
    return path.startswith("/") and ".." not in PurePosixPath(path).parts


def _is_system(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return len(parts) < 2 or parts[1] in {"proc", "sys", "dev"}  # noqa: PLR2004


def _image_error(server: ResolvedServer, problem: str) -> ConfigError:
    return ConfigError(
        f"servers.{server.name}.image",
        f"image '{server.image}' {problem}",
        "use an image without it",
        file=server.origin,
    )
