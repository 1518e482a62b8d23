"""The stdio bridge: a container's pipes, byte lines, and the streams a client reads.

Nothing is imported here: the command line's byte relay must not pay for the MCP SDK.
"""
