"""The ruleset in the kernel: armed before anything else, replaced as a whole, watched.

    arm (deny all) -> apply (policy) -> apply (update) ... -> arm again, at the end

`Kernel` is the gateway's one user of `nft` and of the sets. It never decides what is allowed.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from sandboxed_mcp.egress.ruleset import render_ruleset
from sandboxed_mcp.egress.ruleset_values import MAX_GENERATION, RulesetSpec, list_slots
from sandboxed_mcp.gateway.netlink import NetlinkSocket
from sandboxed_mcp.gateway.nft import NftError, load_ruleset, read_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandboxed_mcp.egress.ruleset_values import Learned
    from sandboxed_mcp.gateway.control import Policy
    from sandboxed_mcp.gateway.link import Link

__all__ = ["SHUT_GENERATION", "Kernel", "TamperedError"]

_Result = TypeVar("_Result")

SHUT_GENERATION: Final = MAX_GENERATION
"""Of the deny-all ruleset: no policy has it, so no open flow survives it."""


class TamperedError(Exception):
    """The rules in force are not the ones that were loaded."""


class Kernel:
    """The ruleset of this network namespace.

    Attributes:
        backstop: Whether packets are also checked at the link.
        spec: What was loaded last.
    """

    def __init__(self, link: Link) -> None:
        """Arm at once: deny everything but loopback.

        Raises:
            NftError: The kernel or the container's capabilities do not allow it.
        """
        stamp = 1 + secrets.randbelow((1 << 30) - 1)
        self._shut = RulesetSpec(
            egress=(),
            generation=SHUT_GENERATION,
            forbidden=link.networks,
            link=link.name,
            stamp=stamp if link.name else 0,
            ipv6=link.ipv6,
        )
        self._forbidden = link.networks
        self._arm()
        self.backstop = self._shut.link is not None
        self.spec = self._shut
        self._fingerprint = ""

    def _arm(self) -> None:
        """Load the deny-all ruleset; without the backstop where the kernel has none.

        The first try is for a fresh namespace, the second for one that an earlier gateway left.
        """
        bare = replace(self._shut, link=None, stamp=0)
        tries = [(self._shut, True), (self._shut, False), (bare, False)]
        for spec, first in tries[:-1]:
            with contextlib.suppress(NftError):
                load_ruleset(render_ruleset(spec, first=first))
                return
        load_ruleset(render_ruleset(bare))
        self._shut = bare

    def shut(self) -> None:
        """Deny everything again, open flows included.

        Raises:
            NftError: The ruleset in force stays as it is.
        """
        load_ruleset(render_ruleset(self._shut))
        self.spec = self._shut

    async def apply(self, policy: Policy, learned: tuple[Learned, ...]) -> None:
        """Put a policy in force, in one transaction.

        Args:
            policy: With the resolvers it asks, in `dns`.
            learned: What its sets hold from the start.

        Raises:
            NftError: The kernel refused; the ruleset before it stays in force.
            RuleError: A rule can never be honoured on this network.
            TamperedError: It is in force, and cannot be read back.
        """
        spec = replace(
            self._shut,
            egress=policy.egress,
            generation=policy.generation,
            gateway=policy.gateway,
            upstreams=policy.dns,
            forbidden=(*self._forbidden, *policy.forbidden),
            mode=policy.mode,
            learned=learned,
            used_bytes=self._read_used(),
        )
        text = render_ruleset(spec)
        await _in_thread(lambda: load_ruleset(text))
        self.spec = spec
        try:
            self._fingerprint = await self._read_fingerprint()
        except NftError as error:
            raise TamperedError(f"the ruleset cannot be read back: {error}") from error

    async def verify(self) -> None:
        """Compare the rules in force with those that were loaded.

        Raises:
            TamperedError: They differ, or a table is gone.
        """
        try:
            found = await self._read_fingerprint()
        except NftError as error:
            raise TamperedError(f"the ruleset cannot be read: {error}") from error
        if found != self._fingerprint:
            raise TamperedError("the ruleset was changed by somebody else")

    async def _read_fingerprint(self) -> str:
        return await _in_thread(lambda: read_fingerprint(link=self.backstop))

    def _read_used(self) -> dict[str, int]:
        """Bytes that rules with a bound have used up under the ruleset in force."""
        from sandboxed_mcp.gateway.sets import read_counts  # noqa: PLC0415 - only to update

        bounded = [s for s in list_slots(self.spec.egress) if s.limits.max_bytes is not None]
        if not bounded:
            return {}
        with NetlinkSocket() as netlink:
            counts = read_counts(netlink)
        return {slot.id: counts[slot.quota].bytes for slot in bounded if slot.quota in counts}


async def _in_thread(work: Callable[[], _Result]) -> _Result:
    """Do something slow without holding up the resolver and the relay."""
    import asyncio  # noqa: PLC0415 - not needed to arm

    return await asyncio.to_thread(work)
