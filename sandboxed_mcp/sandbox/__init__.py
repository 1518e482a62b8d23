"""A server's sandbox while it lives: opened, spoken to, ended, and undone without a trace."""

from sandboxed_mcp.sandbox.asked import image_fix, plan_launch
from sandboxed_mcp.sandbox.launch import open_sandbox
from sandboxed_mcp.sandbox.running import (
    EOF_GRACE_SECONDS,
    KILL_GRACE_SECONDS,
    TERM_GRACE_SECONDS,
    Sandbox,
)

__all__ = [
    "EOF_GRACE_SECONDS",
    "KILL_GRACE_SECONDS",
    "TERM_GRACE_SECONDS",
    "Sandbox",
    "image_fix",
    "open_sandbox",
    "plan_launch",
]
