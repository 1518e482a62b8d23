"""What a launch would ask of the engine: its plan, without carrying it out."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from sandboxed_mcp.engine.owner import describe_owner
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
    gateway = None
    if observe or resolved.policy.egress != ():
        gateway = await engine.inspect_image(GATEWAY_IMAGE, image_fix(GATEWAY_IMAGE))
    return plan_sandbox(resolved, image, who, gateway=gateway, observe=observe)
