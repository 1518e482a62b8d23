"""From settings to containers: every mount, limit, label and argument as a value.

`plan_sandbox` says what shall run, `render_create` and `render_gateway` give the bodies of the
engine's create requests, `render_plan` what a person reads after `--dry-run`. Pure: this stage
never asks the engine, the clock or the environment.
"""

from sandboxed_mcp.plan.planning import control_line, plan_sandbox
from sandboxed_mcp.plan.rendering import render_create, render_gateway, render_plan
from sandboxed_mcp.plan.values import (
    GATEWAY_IMAGE,
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
    "control_line",
    "plan_sandbox",
    "render_create",
    "render_gateway",
    "render_plan",
]
