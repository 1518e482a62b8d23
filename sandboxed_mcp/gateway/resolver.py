"""Resolve the names that rules name, and open their addresses before they are answered.

    query -> decide (pure) -> budgets -> upstream -> grant (pure) -> kernel -> answer

Nothing goes upstream before the decision and the budgets. An answer holds only addresses that
the kernel has acknowledged for the rules that open them, and runs out before they do. Equal
questions share one lookup; an answer is kept for as long as it is served. In `observe` mode
nothing goes upstream at all: every name leads to a sink address of its own.

This module opens no socket; it does its work through `Upstreams` and `Learner`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from sandboxed_mcp.egress.events import Denied, EgressEvent, NameResolved
from sandboxed_mcp.egress.names import matches_name
from sandboxed_mcp.egress.ruleset_values import Learned
from sandboxed_mcp.gateway.answer import Reply
from sandboxed_mcp.gateway.answer_cache import Answer, AnswerCache
from sandboxed_mcp.gateway.budget import DEFAULT_BUDGETS, Budgets, LookupBudget
from sandboxed_mcp.gateway.dns_policy import (
    MAX_ADDRESSES_PER_NAME,
    Forward,
    Grant,
    NamePolicy,
    Settled,
    clamp_ttl,
    decide_query,
    grant_addresses,
)
from sandboxed_mcp.gateway.question import NOERROR, NXDOMAIN, SERVFAIL, A, Query, type_name
from sandboxed_mcp.gateway.sinks import Sinks
from sandboxed_mcp.gateway.upstream import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandboxed_mcp.egress.addresses import IPAddress
    from sandboxed_mcp.egress.values import NameRule
    from sandboxed_mcp.gateway.learned import LearnedNames

__all__ = ["Learner", "NameResolver", "Upstreams"]

MAX_PENDING: Final = 128
"""Lookups under way at once."""

NEGATIVE_SECONDS: Final = 10.0
_SINK_SECONDS: Final = 3600.0
_SINK_TTL: Final = 1


class Upstreams(Protocol):
    """Asks the upstream resolvers."""

    async def ask(self, name: str, query_type: int) -> Reply:
        """Resolve a canonical name; raises `UpstreamError`."""
        ...


class Learner(Protocol):
    """Opens addresses in the kernel."""

    async def learn(self, entries: Sequence[Learned]) -> frozenset[IPAddress]:
        """Open each address for its rule, or prolong it.

        Returns:
            The addresses of which every entry is in force; the others are not to be answered.
        """
        ...


_FAILURE: Final = Answer(SERVFAIL)


class NameResolver:
    """The resolver of one sandbox, without its sockets.

    Attributes:
        learning: Held while addresses are opened; a policy update holds it, so that nothing
            is opened in a ruleset that is about to go.
    """

    def __init__(  # noqa: PLR0913 - each is one outside system
        self,
        policy: NamePolicy,
        *,
        upstream: Upstreams,
        learner: Learner,
        learned: LearnedNames,
        report: Callable[[EgressEvent], None],
        clock: Callable[[], float],
        budgets: Budgets = DEFAULT_BUDGETS,
    ) -> None:
        """Start with a policy; `clock` is monotonic, in seconds."""
        self.learning = asyncio.Lock()
        self._upstream = upstream
        self._learner = learner
        self._learned = learned
        self._report = report
        self._clock = clock
        self._budget = LookupBudget(budgets)
        self._cache = AnswerCache()
        self._sinks = Sinks(learned.forget)
        self._pending: dict[tuple[str, int], asyncio.Task[Answer]] = {}
        self._policy = policy

    def adopt(self, policy: NamePolicy, upstream: Upstreams) -> None:
        """Go on under another policy; call with `learning` held, its ruleset in force."""
        self._policy = policy
        self._upstream = upstream
        self._cache.clear()
        self._pending.clear()
        self._budget.keep(policy.egress)

    def answer_now(self, query: Query) -> Answer | None:
        """Answer from the policy or from the cache; None when that takes a lookup."""
        now = self._clock()
        if (answer := self._cache.find(query, now)) is not None:
            return answer
        if not self._budget.take_query(now):
            self._deny(query, "too many queries")
            return _FAILURE
        if self._policy.mode == "observe":
            return self._observe(query, now)
        decision = decide_query(self._policy, query)
        if isinstance(decision, Settled):
            if decision.denied:
                self._deny(query, decision.denied)
            return Answer(decision.code)
        return None

    async def resolve(self, query: Query) -> Answer:
        """Look a name up that `answer_now` left open."""
        key = (query.name, query.type)
        task = self._pending.get(key)
        if task is None:
            decision = decide_query(self._policy, query)
            if isinstance(decision, Settled):
                return Answer(decision.code)
            if not self._within_budget(query, decision):
                return _FAILURE
            task = asyncio.create_task(self._look_up(query, decision.rules))
            self._pending[key] = task
            task.add_done_callback(lambda done: self._settle(key, done))
        return await asyncio.shield(task)

    def _settle(self, key: tuple[str, int], task: asyncio.Task[Answer]) -> None:
        if self._pending.get(key) is task:
            del self._pending[key]

    def _within_budget(self, query: Query, decision: Forward) -> bool:
        full = len(self._pending) >= MAX_PENDING
        problem = "too many lookups at once" if full else ""
        problem = problem or self._budget.take_lookup(query.name, decision.wildcards, self._clock())
        if problem:
            self._deny(query, problem, decision.nearest)
        return not problem

    async def _look_up(self, query: Query, rules: tuple[NameRule, ...]) -> Answer:
        policy = self._policy
        try:
            reply = await self._upstream.ask(query.name, query.type)
        except UpstreamError as error:
            self._deny(query, f"no answer from upstream: {error}")
            return _FAILURE
        if policy is not self._policy:
            return _FAILURE
        granted, stripped = grant_addresses(policy, query.name, rules, reply.addresses)
        for each in stripped:
            self._deny(query, each.reason, each.rule, address=str(each.address))
        if not granted:
            return self._without_address(query, reply, stripped=bool(stripped))
        async with self.learning:
            if policy is not self._policy:
                return _FAILURE
            return await self._open(query, reply, granted)

    def _without_address(self, query: Query, reply: Reply, *, stripped: bool) -> Answer:
        """Answer without an address.

        A name whose every IPv4 address was taken out does not exist, as far as the server is
        concerned. For IPv6 the answer is merely empty: some clients (musl) take NXDOMAIN to
        one of their two questions as the answer to both.
        """
        if stripped:
            return Answer(NXDOMAIN if query.type == A else NOERROR)
        answer = Answer(reply.code)
        self._cache.keep(query, answer, self._clock() + NEGATIVE_SECONDS)
        self._tell(query, reply, answer, (), ())
        return answer

    async def _open(self, query: Query, reply: Reply, granted: list[Grant]) -> Answer:
        """Have the kernel open the addresses, then answer those that it did open."""
        served, seconds = clamp_ttl(reply.ttl)
        wanted = [grant.address for grant in granted]
        now = self._clock()
        room = set(self._learned.room(query.name, wanted, MAX_ADDRESSES_PER_NAME, now))
        entries = [
            Learned(rule, grant.address, self._prolong(rule, grant.address, seconds, now))
            for grant in granted
            if grant.address in room
            for rule in grant.rules
        ]
        opened = room - {entry.address for entry in entries}  # all of them, if unrestricted
        if entries:
            opened |= await self._learner.learn(entries) & room
        if not opened:
            self._deny(query, "its addresses could not be opened: the set is full")
            return _FAILURE
        self._learned.add(query.name, opened, now + seconds)
        shown = tuple(address for address in wanted if address in opened)
        answer = Answer(NOERROR, tuple(address.packed for address in shown), served)
        self._cache.keep(query, answer, now + served)
        opening = dict.fromkeys(rule for grant in granted for rule in grant.rules)
        self._tell(query, reply, answer, tuple(opening), shown)
        return answer

    def _prolong(self, rule: NameRule, address: IPAddress, seconds: int, now: float) -> int:
        """Never shorten what another name of the same rule was promised for the address."""
        others = self._learned.seconds_left(address, now)
        kept = (left for name, left in others if matches_name(rule, name))
        return max([seconds, *(int(left) + 1 for left in kept)])

    def _observe(self, query: Query, now: float) -> Answer:
        """Lead a name to its sink and record what the policy would have said."""
        decision = decide_query(self._policy, query)
        if isinstance(decision, Settled) and decision.denied:
            self._deny(query, decision.denied)
        if query.type != A:
            return Answer(NOERROR)
        sink = self._sinks.allot(query.name)
        self._learned.add(query.name, [sink], now + _SINK_SECONDS)
        answer = Answer(NOERROR, (sink.packed,), _SINK_TTL)
        if isinstance(decision, Forward):
            self._tell(query, Reply(NOERROR), answer, decision.rules, (sink,))
        return answer

    def _tell(
        self,
        query: Query,
        reply: Reply,
        answer: Answer,
        rules: tuple[NameRule, ...],
        shown: tuple[IPAddress, ...],
    ) -> None:
        self._report(
            NameResolved(
                name=query.name,
                query_type=type_name(query.type),
                rules=tuple(rule.id for rule in rules),
                addresses=tuple(map(str, shown)),
                aliases=reply.aliases,
                ttl=answer.ttl,
            )
        )

    def _deny(self, query: Query, reason: str, rule: str = "", *, address: str = "") -> None:
        self._report(
            Denied(
                layer="dns",
                reason=reason,
                name=query.name,
                query_type=type_name(query.type),
                address=address,
                rule=rule,
            )
        )
