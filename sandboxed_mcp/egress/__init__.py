"""Egress: what a sandbox may reach, as values; `rules` has the grammar and the decision.

Pure and of the standard library alone: the gateway's container shares it with the host side.
"""
