"""The values of the egress stage: rules, destinations, verdicts and the error of a bad rule.

Frozen and made of the standard library alone, because the gateway's container imports them
too. A value made by `parse_rule` holds only what the grammar allows; nothing here parses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from sandboxed_mcp.egress.addresses import IPAddress, IPNetwork

__all__ = [
    "NO_LIMITS",
    "UNRESTRICTED",
    "AddressRule",
    "Destination",
    "Egress",
    "NameRule",
    "PortRange",
    "Protocol",
    "Rule",
    "RuleError",
    "RuleLimits",
    "TlsMode",
    "Unrestricted",
    "Verdict",
]

Protocol = Literal["tcp", "udp"]
TlsMode = Literal["verify", "off"]


class RuleError(Exception):
    """An egress rule, or a name, that is refused.

    Attributes:
        problem: What is wrong, with the value as written.
        fix: What to write instead, one clause.
        setting: Where below `egress` it stands, such as `[3].ports`; empty for the whole.
    """

    def __init__(self, problem: str, fix: str, setting: str = "") -> None:
        """Keep the parts; the text is the problem and the fix."""
        self.problem = problem
        self.fix = fix
        self.setting = setting
        super().__init__(f"{problem}; {fix}")


@dataclass(frozen=True, slots=True)
class PortRange:
    """Ports `first` to `last`, both included; 1 to 65535."""

    first: int
    last: int

    def __contains__(self, port: int) -> bool:
        """Whether a port lies in the range."""
        return self.first <= port <= self.last

    def __str__(self) -> str:
        """The range as the grammar writes it: `443` or `8000-8100`."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    def overlaps(self, other: PortRange) -> bool:
        """Whether some port lies in both ranges."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class RuleLimits:
    """Optional bounds of one rule.

    Attributes:
        max_connections_per_minute: New connections (UDP: new flows) a minute; None for no bound.
        max_bytes: Bytes in both directions over the sandbox's life; None for no bound.
    """

    max_connections_per_minute: int | None = None
    max_bytes: int | None = None


NO_LIMITS: Final = RuleLimits()


@dataclass(frozen=True, slots=True)
class NameRule:
    """Destinations by host name.

    Attributes:
        pattern: Lower-case A-labels without a trailing dot, `api.example.com`, or
            `*.example.com`: one or more labels below, never the apex.
        ports: The ports it opens.
        protocol: `tcp` or `udp`.
        tls: `verify`: the TLS server name of each connection must match the pattern;
            `off`: by learned address alone. Always `off` for UDP.
        allow_private: Whether the name may lead to private addresses.
        limits: Optional bounds.
    """

    pattern: str
    ports: PortRange
    protocol: Protocol
    tls: TlsMode
    allow_private: bool = False
    limits: RuleLimits = NO_LIMITS

    @property
    def wildcard(self) -> bool:
        """Whether the pattern starts with `*.`."""
        return self.pattern.startswith("*.")

    @property
    def suffix(self) -> str:
        """The pattern without its `*.`."""
        return self.pattern.removeprefix("*.")

    @property
    def text(self) -> str:
        """The canonical text, equal for equal rules."""
        protocol = "" if self.tls == "verify" else f"/{self.protocol}"
        return f"{self.pattern}:{self.ports}{protocol}{_render_options(self)}"

    @property
    def id(self) -> str:
        """A short id that depends on the canonical text alone: `r` and 12 hex digits."""
        return _hash(self.text)


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Destinations by address.

    Attributes:
        network: The addresses; a single address has the longest prefix.
        ports: The ports it opens.
        protocol: `tcp` or `udp`.
        allow_private: Only needed for a metadata address; a private network needs no leave.
        limits: Optional bounds.
    """

    network: IPNetwork
    ports: PortRange
    protocol: Protocol
    allow_private: bool = False
    limits: RuleLimits = NO_LIMITS

    @property
    def single(self) -> bool:
        """Whether the rule names one address."""
        return self.network.prefixlen == self.network.max_prefixlen

    @property
    def target(self) -> str:
        """The network or address as the grammar writes it, IPv6 in brackets."""
        written = str(self.network.network_address) if self.single else str(self.network)
        return f"[{written}]" if ":" in written else written

    @property
    def text(self) -> str:
        """The canonical text, equal for equal rules."""
        return f"{self.target}:{self.ports}/{self.protocol}{_render_options(self)}"

    @property
    def id(self) -> str:
        """A short id that depends on the canonical text alone: `r` and 12 hex digits."""
        return _hash(self.text)


Rule = NameRule | AddressRule


@dataclass(frozen=True, slots=True)
class Unrestricted:
    """Every destination is open: `egress = "unrestricted"`."""

    @property
    def text(self) -> str:
        """The word the policy spells out."""
        return "unrestricted"


UNRESTRICTED: Final = Unrestricted()

Egress = Unrestricted | tuple[Rule, ...]
"""What a sandbox may reach; the empty tuple is no network at all."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a packet or a connection wants to go.

    Attributes:
        host: The canonical name (see `canonical_name`) it asked for; None when unknown.
        address: The address; None before the name is resolved.
        port: 1 to 65535.
        protocol: `tcp` or `udp`.
        tls_server_name: The canonical name in its ClientHello (RFC 6066); None for none.
    """

    host: str | None
    address: IPAddress | None
    port: int
    protocol: Protocol = "tcp"
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy says about a destination.

    Attributes:
        allowed: Whether the packet may leave.
        rule: The rule that decided; None when none applies (the default is to deny).
        reason: One sentence for a person.
    """

    allowed: bool
    rule: Rule | None
    reason: str


def _render_options(rule: NameRule | AddressRule) -> str:
    options = ["allow_private"] if rule.allow_private else []
    if rule.limits.max_connections_per_minute is not None:
        options.append(f"max_connections_per_minute={rule.limits.max_connections_per_minute}")
    if rule.limits.max_bytes is not None:
        options.append(f"max_bytes={rule.limits.max_bytes}")
    return f" ({', '.join(options)})" if options else ""


def _hash(text: str) -> str:
    import hashlib  # noqa: PLC0415 - the launcher needs no ids and starts faster without

    return "r" + hashlib.sha256(text.encode()).hexdigest()[:12]
