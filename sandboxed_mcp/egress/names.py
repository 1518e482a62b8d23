"""Host names: the canonical form of one, the pattern of a rule, and whether they match.

A canonical name is lower-case ASCII labels (A-labels, RFC 5890) with one dot between them and
none at the end. Names are compared label by label, never as substrings. This module never
resolves a name; `idna` is imported only for a name that is not plain ASCII.
"""

from __future__ import annotations

import re
from typing import Final

from sandboxed_mcp.egress.values import NameRule, RuleError

__all__ = ["canonical_name", "ends_in_number", "matches_name", "parse_pattern"]

MAX_NAME: Final = 253
MAX_LABEL: Final = 63
FEWEST_LABELS: Final = 2

_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\Z")
_NUMBER: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_PRINTABLE: Final = re.compile(r"[\x21-\x7e]+\Z")
_LOCAL_SUFFIXES: Final = ("localhost", "docker.internal", "containers.internal")
_METADATA_NAMES: Final = ("metadata.google.internal", "instance-data.ec2.internal")


def canonical_name(text: str) -> str:
    """Bring a name that was asked for (in a query, in a ClientHello) into canonical form.

    Args:
        text: A name in ASCII; one trailing dot is dropped. Labels such as `_dmarc` pass: they
            are legal in the DNS (RFC 2181, 11), though no rule can name them.

    Returns:
        The lower-case name.

    Raises:
        RuleError: The name is empty, too long, has an empty label, or holds a character that
            is not printable ASCII, a space or a backslash.
    """
    fix = "ask for a name of ASCII labels with single dots between them"
    name = text.removesuffix(".")
    if not name:
        raise RuleError(f"name {text!r} is empty", fix)
    if not _PRINTABLE.match(name) or "\\" in name:
        raise RuleError(f"name {text[:MAX_NAME]!r} holds a character that no host name has", fix)
    _check_lengths(name, text)
    return name.lower()


def matches_name(rule: NameRule, name: str) -> bool:
    """Whether a rule names a canonical name, compared label by label.

    A wildcard matches one or more labels below its suffix and never the suffix itself.
    """
    labels, suffix = name.split("."), rule.suffix.split(".")
    if rule.wildcard:
        return len(labels) > len(suffix) and labels[-len(suffix) :] == suffix
    return labels == suffix


def ends_in_number(name: str) -> bool:
    """Whether a resolver may read the name as an IPv4 address (WHATWG URL, "ends in a number").

    `127.1`, `0x7f.1`, `1.2.3` and `2130706433` are such names.
    """
    last = name.lower().removesuffix(".").rpartition(".")[2]
    return bool(_NUMBER.match(last))


def parse_pattern(text: str, *, allow_private: bool) -> str:
    """Read the host of a rule: an exact name, or `*.` and a suffix of two labels or more.

    Args:
        text: The host as written, Unicode or A-labels, any ASCII case.
        allow_private: Whether the rule opens private addresses: a single-label name such as
            `nas` is a local one, so it is refused without.

    Returns:
        The canonical pattern.

    Raises:
        RuleError: The reason, by name.
    """
    if text == "*":
        raise RuleError("'*' names every host", 'write egress = "unrestricted" if that is meant')
    wildcard = text.startswith("*.")
    suffix = _parse_host(text[2:] if wildcard else text, text)
    labels = suffix.split(".")
    _check_local(suffix, text)
    if wildcard and len(labels) < FEWEST_LABELS:
        raise RuleError(
            f"wildcard {text!r} stands directly below a top-level name",
            "keep at least two labels after '*.', such as '*.example.com'",
        )
    if len(labels) < FEWEST_LABELS and not allow_private:
        raise RuleError(
            f"host {text!r} has a single label, which only a local network can resolve",
            "write the full name, or a table with allow_private = true",
        )
    return f"*.{suffix}" if wildcard else suffix


def _parse_host(text: str, written: str) -> str:
    if "*" in text:
        raise RuleError(
            f"wildcard in {written!r} is not a whole first label",
            "write '*.' once, at the very start, such as '*.example.com'",
        )
    if "_" in text:
        raise RuleError(
            f"host {written!r} holds '_'", "name a host; service labels have no address"
        )
    name = text.removesuffix(".")
    if ends_in_number(name):
        raise RuleError(
            f"host {written!r} is not a name: programs read it as an IPv4 address",
            "write the address with four decimal numbers, such as '192.0.2.1:443/tcp'",
        )
    encoded = _encode(name, written)
    _check_lengths(encoded, written)
    return encoded


def _encode(name: str, written: str) -> str:
    """Encode by IDNA 2008 (RFC 5891), strictly: no mapping beyond ASCII case."""
    lowered = "".join(char.lower() if char.isascii() else char for char in name)
    if all(_plain(label) for label in lowered.split(".")):
        return lowered
    if lowered.isascii():
        _check_ascii_labels(lowered, written)
    import idna  # noqa: PLC0415 - most policies need no Unicode

    try:
        return idna.encode(lowered, strict=True, std3_rules=True).decode("ascii")
    except (idna.IDNAError, UnicodeError) as error:
        raise RuleError(
            f"host {written!r} is not a valid IDNA 2008 name ({error})",
            "write it in lower case, or its 'xn--' form",
        ) from error


def _plain(label: str) -> bool:
    return bool(_LABEL.match(label)) and label[2:4] != "--"


def _check_ascii_labels(name: str, written: str) -> None:
    _check_lengths(name, written)
    for label in name.split("."):
        if not _LABEL.match(label):
            raise RuleError(
                f"host {written!r} has the label {label!r}",
                "use letters, digits and inner hyphens only",
            )


def _check_lengths(name: str, written: str) -> None:
    labels = name.split(".")
    shown = written[:MAX_NAME]
    if "" in labels:
        raise RuleError(f"name {shown!r} has an empty label", "put single dots between labels")
    if max(map(len, labels)) > MAX_LABEL:
        raise RuleError(
            f"name {shown!r} has a label of more than {MAX_LABEL} characters",
            "shorten the label (RFC 1035, 2.3.4)",
        )
    if len(name) > MAX_NAME:
        raise RuleError(
            f"name {shown!r} and so on has more than {MAX_NAME} characters",
            "shorten the name (RFC 1035, 2.3.4)",
        )


def _check_local(name: str, written: str) -> None:
    for suffix in _LOCAL_SUFFIXES:
        if name == suffix or name.endswith(f".{suffix}"):
            raise RuleError(
                f"host {written!r} means the machine that runs the sandbox",
                "no rule opens the host; run the service elsewhere and name that",
            )
    if name in _METADATA_NAMES:
        raise RuleError(
            f"host {written!r} is a metadata service, which hands out the machine's credentials",
            "a name never opens it; write its address in a table with allow_private = true",
        )
