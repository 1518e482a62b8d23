"""From what was observed to a policy: every line of it is a rule, whatever a server asked for."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.audit.activity import LOOKUP, MAX_PLACES, Activity, Place
from sandboxed_mcp.audit.suggest import make_suggestions, render_suggestions
from sandboxed_mcp.cli.main import cli
from sandboxed_mcp.cli.observed import Observer
from sandboxed_mcp.cli.tables import open_console
from sandboxed_mcp.cli.watch import build_table
from sandboxed_mcp.config.policies import load_policy
from sandboxed_mcp.egress.rules import parse_egress, parse_rule
from sandboxed_mcp.events import NetworkEvent

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, object]


def event(kind: str, **fields: object) -> Event:
    return {"event": kind, "time": 1_800_000_000.0, "server": "notes", "launch": "0" * 32, **fields}


def denied(layer: str, name: str = "", **fields: object) -> Event:
    return event("deny", layer=layer, name=name, count=1, **fields)


def suggest(*events: Event) -> tuple[str, list[str]]:
    """The text, and its rules."""
    activity = Activity()
    for one in events:
        activity.take(one)
    text = render_suggestions(*make_suggestions(activity), "a test")
    egress = tomllib.loads(text)["egress"]
    parse_egress(egress)
    return text, egress


def connected(name: str, port: int, rule: str, address: str = "198.51.100.1") -> Event:
    wanted = parse_rule(rule).id
    return event("connect", rule=wanted, name=name, address=address, port=port, protocol="tcp")


@pytest.mark.parametrize(
    ("events", "rules"),
    [
        ([denied("dns", "a.test", query_type="A", reason="no rule names it")], ["a.test:443"]),
        ([denied("dns", "a.test", query_type="TXT", reason="x")], []),
        (
            [denied("tls", "a.test", address="192.0.2.1", port=8443, reason="observed")],
            ["a.test:8443"],
        ),
        (
            [denied("tls", "a.test", address="192.0.2.1", port=5432, reason="not tls")],
            ["a.test:5432/tcp"],
        ),
        (
            [denied("tls", "a.test", address="192.0.2.1", port=443, reason="no server name")],
            ["a.test:443/tcp"],
        ),
        (
            [denied("packet", "t.test", port=123, protocol="udp", reason="observed")],
            ["t.test:123/udp"],
        ),
        ([connected("a.test", 443, "a.test")], ["a.test:443"]),
        ([connected("a.test", 443, "a.test:443/tcp")], ["a.test:443/tcp"]),
        ([connected("b.a.test", 443, "*.a.test:443")], ["b.a.test:443"]),
        ([connected("db.test", 5432, "db.test:5432/tcp")], ["db.test:5432/tcp"]),
        (
            [connected("", 25, "198.51.100.0/24:25/tcp", "198.51.100.9")],
            ["198.51.100.9:25/tcp"],
        ),
        (
            [denied("packet", address="2001:db8::9", port=443, protocol="tcp", reason="default")],
            ["[2001:db8::9]:443/tcp"],
        ),
    ],
)
def test_what_was_wanted_becomes_the_narrowest_rule(events: list[Event], rules: list[str]) -> None:
    text, egress = suggest(*events)
    assert egress == rules
    assert "*" not in "".join(egress)
    assert "2027-01-15" in text


def test_a_lookup_that_a_connection_followed_is_no_rule_of_its_own() -> None:
    _, egress = suggest(
        event("dns", name="db.test", query_type="A", rules=[], addresses=["198.51.100.1"]),
        connected("db.test", 5432, "db.test:5432/tcp"),
    )
    assert egress == ["db.test:5432/tcp"]


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "127.0.0.1", "224.0.0.1", "::1", "fe80::1", "192.0.2.7"]
)
def test_what_no_rule_may_open_is_not_suggested(address: str) -> None:
    text, egress = suggest(denied("packet", address=address, port=80, protocol="tcp"))
    assert egress == []
    assert address not in text
    assert "there are too many: 1" in text


def test_a_private_address_that_was_denied_stays_a_comment() -> None:
    text, egress = suggest(denied("packet", address="10.0.0.5", port=80, protocol="tcp"))
    assert egress == []
    assert '    # "10.0.0.5:80/tcp",' in text


def test_a_packet_from_outside_is_no_wish_of_the_server() -> None:
    fields: dict[str, Any] = {"address": "198.51.100.9", "port": 80, "protocol": "tcp"}
    assert suggest(denied("packet", reason="inbound", **fields))[1] == []


def test_allow_private_is_never_suggested() -> None:
    private = denied("dns", "lan.test", query_type="A", address="10.0.0.5", reason="is private")
    text, egress = suggest(private)
    assert egress == ["lan.test:443"]
    assert "10.0.0.5" in text
    assert "allow_private" not in text


HOSTILE = 'x"\n]\negress = "unrestricted"\n#\x1b[2J\u2028'


@pytest.mark.parametrize("key", ["name", "address", "reason", "protocol", "query_type", "rule"])
@pytest.mark.parametrize("layer", ["dns", "tls", "packet"])
def test_no_text_of_a_server_becomes_more_than_a_comment(layer: str, key: str) -> None:
    fields: dict[str, Any] = {"name": "ok.test", "port": 443, "protocol": "tcp", "reason": "x"}
    text, egress = suggest(denied(layer, **(fields | {key: HOSTILE})))
    assert egress in ([], ["ok.test:443"])
    assert "\x1b" not in text
    outside = [line for line in text.splitlines() if not line.strip().startswith("#")]
    assert not any("unrestricted" in line for line in outside)


anything = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
names = st.sampled_from(["a.test", "A.TEST.", "*.b.test", "198.51.100.1", "::1", "", "x\ny"])
fields = st.fixed_dictionaries(
    {"event": st.sampled_from(["dns", "connect", "close", "deny", "suppressed", "Exited"])},
    optional={
        "time": anything,
        "name": st.one_of(names, anything),
        "address": st.one_of(names, anything),
        "port": st.one_of(st.sampled_from([0, 53, 443, 65536]), anything),
        "protocol": st.one_of(st.sampled_from(["tcp", "udp", "icmp"]), anything),
        "layer": st.one_of(st.sampled_from(["dns", "tls", "packet"]), anything),
        "reason": st.one_of(st.sampled_from(["not tls", "observed"]), anything),
        "count": anything,
        "sent": anything,
        "received": anything,
        "rules": st.one_of(st.lists(anything, max_size=3), anything),
        "addresses": st.one_of(st.lists(names, max_size=3), anything),
        "query_type": anything,
    },
)


@given(st.lists(fields, max_size=12))
def test_any_log_gives_a_policy_that_parses(events: list[Event]) -> None:
    text, _ = suggest(*events)
    assert all(char.isprintable() or char == "\n" for char in text)
    activity = Activity()
    for one in events:
        activity.take(one)
    console = open_console()
    with console.capture() as captured:
        console.print(build_table("x", activity, 5))
    assert "\x1b" not in captured.get()


def test_a_flood_of_names_is_bounded_and_counted() -> None:
    activity = Activity()
    for number in range(MAX_PLACES + 10):
        activity.take(denied("dns", f"n{number}.test", query_type="A"))
    for _ in range(3):
        activity.take(denied("dns", "n7.test", query_type="A"))
    assert activity.left_out == 10
    suggestions, left_out = make_suggestions(activity)
    assert len(suggestions) == 256
    assert left_out == MAX_PLACES + 10 - 256
    assert "n7.test:443" in render_suggestions(suggestions, left_out, "x")


def test_connections_that_are_open_are_those_that_have_not_ended() -> None:
    activity = Activity()
    for _ in range(3):
        activity.take(connected("a.test", 443, "a.test"))
    ends = event("close", name="a.test", address="198.51.100.1", port=443, protocol="tcp")
    activity.take(ends | {"sent": 10, "received": 2000, "rule": "r"})
    traffic = activity.places[Place("a.test", 443, "tcp")]
    assert (traffic.allowed, traffic.open, traffic.sent, traffic.received) == (3, 2, 10, 2000)
    assert Place("a.test", 0, LOOKUP) not in activity.places


def write_log(path: Path, *events: Event) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in events))
    return path


def test_the_command_prints_a_policy_that_the_check_takes(tmp_path: Path) -> None:
    wanted = denied("dns", "a.test", query_type="A", reason="no rule names it")
    log = write_log(tmp_path / "audit.jsonl", wanted, {"no": "event"})
    done = CliRunner().invoke(cli, ["policy", "suggest", str(log)])
    assert done.exit_code == 0, done.stderr
    assert "1 lines are no events" in done.stderr
    policy = tmp_path / "policy.toml"
    policy.write_text(done.stdout)
    assert [rule.text for rule in load_policy(policy).egress] == ["a.test:443"]  # pyright: ignore


def test_the_command_reads_the_files_before_too(tmp_path: Path) -> None:
    log = write_log(tmp_path / "audit.jsonl", denied("dns", "b.test", query_type="A"))
    write_log(tmp_path / "audit.jsonl.3", denied("dns", "a.test", query_type="A"))
    done = CliRunner().invoke(cli, ["policy", "suggest", str(log)])
    assert '"a.test:443",' in done.stdout
    assert '"b.test:443",' in done.stdout


def test_a_log_of_several_servers_needs_a_name(tmp_path: Path) -> None:
    one = denied("dns", "a.test", query_type="A")
    other = denied("dns", "b.test", query_type="A") | {"server": "other\x1b[2J"}
    log = write_log(tmp_path / "audit.jsonl", one, other)
    done = CliRunner().invoke(cli, ["policy", "suggest", str(log)])
    assert done.exit_code == 2
    assert "--server" in done.stderr
    assert "\x1b" not in done.stderr
    chosen = CliRunner().invoke(cli, ["policy", "suggest", str(log), "--server", "notes"])
    assert '"a.test:443",' in chosen.stdout
    assert "b.test" not in chosen.stdout
    none = CliRunner().invoke(cli, ["policy", "suggest", str(log), "--server", "nobody"])
    assert none.exit_code == 2


@pytest.mark.parametrize("name", ["none.jsonl", "folder"])
def test_what_is_no_log_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    done = CliRunner().invoke(cli, ["policy", "suggest", str(tmp_path / name)])
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


def test_a_log_without_any_wish_says_so(tmp_path: Path) -> None:
    log = write_log(tmp_path / "audit.jsonl", event("Exited", code=0))
    done = CliRunner().invoke(cli, ["policy", "suggest", str(log)])
    assert done.exit_code == 1
    assert done.stdout == ""


def test_what_was_observed_is_told_in_a_few_lines() -> None:
    observer = Observer("notes")
    assert observer.summarize().endswith("wanted nothing")
    for number in range(100):
        details = {"layer": "tls", "name": f"n{number}.test", "port": 443, "reason": "observed"}
        observer.take(
            NetworkEvent(time=1, server="notes", launch="0", kind="deny", details=details)
        )
    told = observer.summarize()
    assert "n0.test on 443/tcp (once, TLS)" in told
    assert "and 60 more" in told
