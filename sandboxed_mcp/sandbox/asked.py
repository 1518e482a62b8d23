"""What a launch would ask of the engine: its plan, without carrying it out."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from sandboxed_mcp.egress.rules import NameRule, Unrestricted
from sandboxed_mcp.engine.host_network import host_addresses, usable_resolvers
from sandboxed_mcp.engine.owner import describe_owner
from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.plan import GATEWAY_IMAGE, LaunchIdentity, SandboxPlan, plan_sandbox

if TYPE_CHECKING:
    from sandboxed_mcp.config.resolved import ResolvedServer
    from sandboxed_mcp.engine.api import Engine

__all__ = ["image_fix", "plan_launch"]


def image_fix(reference: str) -> str:
    """What to run when an image is missing."""
    if reference.startswith("sandboxed-mcp/"):
        name = reference.removeprefix("sandboxed-mcp/").partition(":")[0]
        return f"run 'sandboxed-mcp build {name}' once"
    return f"run 'docker pull {reference}' or build it, then start again"


async def plan_launch(
    resolved: ResolvedServer,
    engine: Engine,
    *,
    who: LaunchIdentity | None = None,
    observe: bool = False,
) -> SandboxPlan:
    """The plan of a launch, as `--dry-run` shows it; nothing is created.

    Args:
        resolved: Resolved settings.
        engine: The engine that holds the image.
        who: The launch id and the launching process; None makes a new launch of this process.
        observe: Whether nothing may leave, and what the server wants is recorded.

    Raises:
        ConfigError: A setting cannot be enforced.
        EngineError: The image is missing, or the engine refuses.
    """
    who = who or LaunchIdentity(uuid.uuid4().hex, describe_owner())
    image = await engine.inspect_image(resolved.image, image_fix(resolved.image))
    if not observe and resolved.policy.egress == ():
        return plan_sandbox(resolved, image, who)
    gateway = await engine.inspect_image(GATEWAY_IMAGE, image_fix(GATEWAY_IMAGE))
    if engine.endpoint.is_local:
        who = replace(who, host_addresses=host_addresses())
        _check_resolvers(resolved)
    return plan_sandbox(resolved, image, who, gateway=gateway, observe=observe)


def _check_resolvers(resolved: ResolvedServer) -> None:
    """Refuses to let the engine choose resolvers: it would choose public ones."""
    rules = resolved.policy.egress
    named = isinstance(rules, Unrestricted) or any(isinstance(rule, NameRule) for rule in rules)
    if named and not resolved.policy.dns and not usable_resolvers():
        raise ConfigError(
            f"servers.{resolved.name}.policy.dns",
            "is empty, and this machine's own resolvers listen on loopback only, so that the "
            "engine would ask public ones instead",
            'name a resolver, such as dns = ["198.51.100.53"]',
            file=resolved.origin,
        )
