"""The gateway: owns a sandbox's network namespace, resolves names and verifies TLS names.

Runs as `python -m sandboxed_mcp.gateway` in its own container, with NET_ADMIN and nothing
else. It shares only the egress stage with the host side; it never imports pydantic or mcp.
"""
