"""The gateway of one sandbox: resolver, relay and ruleset under one policy.

Opened in this order, closed in reverse: sockets listen, the ruleset leads to them, the kernel's
reports are heard, the probes agree. An update takes effect as a whole or not at all; while it
does, nothing is opened. Any error in here that is not about an update ends the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.egress.events import CanaryChecked, EgressEvent, PolicyApplied
from sandboxed_mcp.egress.rules import NameRule, Unrestricted, rules_for_name
from sandboxed_mcp.gateway.canary import Canary, CanaryError
from sandboxed_mcp.gateway.conntrack import FLOW_GROUPS, FlowListener, end_flow, list_flows
from sandboxed_mcp.gateway.control import ControlError, Policy, parse_upstream
from sandboxed_mcp.gateway.dns_policy import NamePolicy, keep_learned
from sandboxed_mcp.gateway.dns_server import open_dns_server
from sandboxed_mcp.gateway.flows import FlowReporter
from sandboxed_mcp.gateway.kernel import Kernel, TamperedError
from sandboxed_mcp.gateway.learned import LearnedNames
from sandboxed_mcp.gateway.netlink import NetlinkSocket
from sandboxed_mcp.gateway.nflog import DeniedListener
from sandboxed_mcp.gateway.relay import Relay, open_relay
from sandboxed_mcp.gateway.relay_policy import RelayPolicy
from sandboxed_mcp.gateway.resolver import NameResolver
from sandboxed_mcp.gateway.sets import LearnedSets, read_counts
from sandboxed_mcp.gateway.sockets import destroy_sockets
from sandboxed_mcp.gateway.upstream import UpstreamClient, parse_resolv_conf

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from sandboxed_mcp.egress.addresses import IPAddress
    from sandboxed_mcp.egress.ruleset_values import Upstream
    from sandboxed_mcp.gateway.link import Link

__all__ = ["Gateway", "choose_resolvers", "open_gateway"]

PROBE_SECONDS: Final = 5.0
LAST_WORDS_SECONDS: Final = 0.08
"""At the end: longer than the kernel holds back the report of a denied packet."""

POLL_SECONDS: Final = 2.0
POLLS_A_PURGE: Final = 30
RESOLV_CONF: Final = Path("/etc/resolv.conf")


class Gateway:
    """A gateway with a policy in force; `open_gateway` makes one.

    Attributes:
        policy: What is in force, with the resolvers that are asked.
    """

    def __init__(
        self,
        policy: Policy,
        kernel: Kernel,
        link: Link,
        sets: LearnedSets,
        report: Callable[[EgressEvent], None],
    ) -> None:
        """Compose; nothing is opened yet."""
        self.policy = policy
        self._kernel = kernel
        self._link = link
        self._report = report
        self._learned = LearnedNames()
        self.resolver = NameResolver(
            self._name_policy(policy),
            upstream=_client(policy),
            learner=sets,
            learned=self._learned,
            report=report,
            clock=time.monotonic,
        )
        self.canary = Canary(self.resolver)
        self.relay = Relay(
            _relay_policy(policy),
            names=self._names,
            report=report,
            mark=policy.gateway.mark,
            clock=time.monotonic,
        )
        self.flows = FlowReporter(
            names=self._names,
            report=report,
            clock=time.monotonic,
            is_probe=self.canary.is_probe,
        )

    async def enforce(self) -> None:
        """Put the first policy in force and probe it.

        Raises:
            NftError: The kernel refused.
            RuleError: A rule can never be honoured on this network.
            CanaryError: The ruleset does not do what it should.
        """
        await self._kernel.apply(self.policy, ())
        self.flows.adopt(self.policy.egress, self.policy.generation)
        await self.canary.probe()
        self._report(CanaryChecked(passed=True))
        self._report(_applied(self.policy, 0))

    async def update(self, policy: Policy) -> None:
        """Put another policy in force, as a whole or not at all.

        Raises:
            ControlError: Its generation is not a later one, or it has no resolver to ask.
            NftError: The kernel refused.
            RuleError: A rule can never be honoured on this network.
            CanaryError: It is in force and does not do what it should: the gateway must end.
        """
        if policy.generation <= self.policy.generation:
            problem = f"generation: write a number above {self.policy.generation}"
            raise ControlError(problem, policy.generation)
        policy = replace(choose_resolvers(policy, self._link), gateway=self.policy.gateway)
        names = self._name_policy(policy)
        async with self.resolver.learning:
            goes_on = policy.mode == self.policy.mode == "enforce"
            pairs = self._learned.items(time.monotonic()) if goes_on else []
            kept = keep_learned(names, pairs)
            await self._kernel.apply(policy, kept)
            self.policy = policy
            self.resolver.adopt(names, _client(policy))
            open_pairs = {(entry.rule, entry.address) for entry in kept}
            self._learned.keep(
                lambda name, address: any(
                    (rule, address) in open_pairs for rule in rules_for_name(policy.egress, name)
                )
            )
            ended = self._end_connections(policy)
        await self.canary.probe()
        self._report(_applied(policy, ended))

    async def watch(self) -> None:
        """Probe and compare the ruleset every `PROBE_SECONDS`, until something is wrong.

        Raises:
            CanaryError: A probe went the wrong way.
            TamperedError: The rules are not ours any more.
        """
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            try:
                async with self.resolver.learning:
                    await self.canary.probe()
                    await self._kernel.verify()
            except (CanaryError, TamperedError) as error:
                self._report(CanaryChecked(passed=False, detail=str(error)))
                raise

    async def tend(self, listener: FlowListener, requests: NetlinkSocket) -> None:
        """Tell of ended flows and unlogged denials, and forget names that have run out."""
        while True:
            for _ in range(POLLS_A_PURGE):
                await asyncio.sleep(POLL_SECONDS)
                self.flows.report_flows(listener.poll(requests))
                self.flows.report_unlogged(read_counts(requests))
            self._learned.purge(time.monotonic())

    def _end_connections(self, policy: Policy) -> int:
        """End what the policy does not open any more; flows it keeps pass the rules again."""
        ended = self.relay.adopt(_relay_policy(policy))
        self.flows.adopt(policy.egress, policy.generation)
        with NetlinkSocket() as netlink:
            flows = list_flows(netlink)
            forbidden = self.flows.find_forbidden(flows, policy.egress, policy.generation)
            ended += sum(end_flow(netlink, flow) for flow in forbidden)
        destroy_sockets(forbidden)
        return ended

    def _name_policy(self, policy: Policy) -> NamePolicy:
        return NamePolicy(
            policy.egress,
            policy.mode,
            (*self._link.networks, *policy.forbidden),
            self._link.ipv6,
        )

    def _names(self, address: IPAddress) -> tuple[str, ...]:
        return self._learned.names(address, time.monotonic())


@contextlib.asynccontextmanager
async def open_gateway(
    policy: Policy, kernel: Kernel, link: Link, report: Callable[[EgressEvent], None]
) -> AsyncGenerator[Gateway]:
    """Open a gateway: when the context is entered, the policy is in force and probed.

    Args:
        policy: The first policy.
        kernel: Armed.
        link: The network as it was found.
        report: Takes events.

    Raises:
        ControlError: There is no network, or no resolver to ask.
        NftError: The kernel refused.
        RuleError: A rule can never be honoured on this network.
        CanaryError: The ruleset does not do what it should.
        OSError: A port or a kernel interface is not to be had.
    """
    if link.name is None and policy.mode == "enforce":
        raise ControlError(
            "the sandbox has no network to put rules on: the engine has no default bridge",
            policy.generation,
        )
    policy = choose_resolvers(policy, link)
    ports = policy.gateway
    async with contextlib.AsyncExitStack() as stack:
        sets = LearnedSets(stack.enter_context(NetlinkSocket()))
        flows = FlowListener(stack.enter_context(NetlinkSocket(FLOW_GROUPS)))
        requests = stack.enter_context(NetlinkSocket())
        log_socket = stack.enter_context(NetlinkSocket())
        denied = DeniedListener(log_socket, kernel.spec.log_group)
        gateway = Gateway(policy, kernel, link, sets, report)
        hosts = link.loopbacks
        await stack.enter_async_context(
            open_dns_server(gateway.canary, hosts=hosts, port=ports.resolver_port, report=report)
        )
        await stack.enter_async_context(
            open_relay(gateway.relay, hosts=hosts, port=ports.relay_port)
        )
        stack.callback(gateway.flows.watch(flows, denied))
        stack.push_async_callback(asyncio.sleep, LAST_WORDS_SECONDS)
        await gateway.enforce()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for work in (gateway.watch(), gateway.tend(flows, requests)):
            stack.callback(tasks.create_task(work).cancel)
        yield gateway


def choose_resolvers(policy: Policy, link: Link) -> Policy:
    """Fill in the engine's resolvers where the policy names none.

    Raises:
        ControlError: None can be asked, and a rule names a host.
    """
    found = policy.dns or _read_resolvers()
    usable = tuple(each for each in found if link.ipv6 or each.address.version == 4)  # noqa: PLR2004
    needed = isinstance(policy.egress, Unrestricted) or any(
        isinstance(rule, NameRule) for rule in policy.egress
    )
    if needed and not usable and policy.mode == "enforce":
        raise ControlError(
            "dns: the engine's resolv.conf names no resolver that can be asked from here; "
            "name one in the policy",
            policy.generation,
        )
    return replace(policy, dns=usable)


def _read_resolvers() -> tuple[Upstream, ...]:
    """The engine's resolvers; its embedded one and other local ones cannot be asked."""
    found: list[Upstream] = []
    for text in parse_resolv_conf(RESOLV_CONF.read_text("utf-8", "replace")):
        with contextlib.suppress(ControlError):
            found.append(parse_upstream(text))
    return tuple(found)


def _client(policy: Policy) -> UpstreamClient:
    return UpstreamClient(policy.dns, policy.gateway.mark, policy.gateway.upstream_ports)


def _relay_policy(policy: Policy) -> RelayPolicy:
    rules = () if isinstance(policy.egress, Unrestricted) else policy.egress
    return RelayPolicy(rules, policy.mode)


def _applied(policy: Policy, ended: int) -> PolicyApplied:
    count = 0 if isinstance(policy.egress, Unrestricted) else len(policy.egress)
    return PolicyApplied(generation=policy.generation, mode=policy.mode, rules=count, ended=ended)
