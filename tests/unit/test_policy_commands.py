"""`policy explain` and what `policy test` makes up and concludes: without any traffic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from sandboxed_mcp.cli.main import cli
from sandboxed_mcp.cli.reach import FOREIGN_NAME, Trial, judge, list_trials
from sandboxed_mcp.egress.rules import RuleError, parse_egress
from sandboxed_mcp.events import NetworkEvent

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

RULES = [
    "api.example.com",
    "*.wild.example.com",
    "db.example.com:5432/tcp",
    "10.2.0.0/16:5432/tcp",
    {"host": "lan.example.com", "ports": 80, "protocol": "tcp", "allow_private": True},
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    policy = tmp_path / "rules.toml"
    rules = ", ".join(
        json.dumps(one)
        if isinstance(one, str)
        else "{" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in one.items()) + "}"
        for one in RULES
    )
    policy.write_text(f"egress = [{rules}]\n")
    path = tmp_path / "sandboxed-mcp.toml"
    path.write_text(
        '[servers.notes]\nimage = "x"\npolicy = "./rules.toml"\nsecrets = ["NOT_SET_ANYWHERE"]\n'
        '[servers.offline]\nimage = "x"\n'
        '[servers.open]\nimage = "x"\npolicy = { egress = "unrestricted" }\n'
        '[servers.broken]\nimage = "x"\npolicy = "none-of-that-name"\n'
    )
    return path


def explain(config: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["policy", "explain", *words, "--config", str(config)])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["notes", "api.example.com"], "rule 'api.example.com:443' opens it"),
        (["notes", "API.Example.COM.:443"], "rule 'api.example.com:443' opens it"),
        (["notes", "a.b.wild.example.com"], "rule '*.wild.example.com:443' opens it"),
        (["notes", "db.example.com:5432"], "rule 'db.example.com:5432/tcp' opens it"),
        (["notes", "10.2.3.4:5432"], "rule '10.2.0.0/16:5432/tcp' opens it"),
        (["notes", "lan.example.com:80"], "any address are opened"),
        (["open", "anything.example:1/udp"], "egress is unrestricted"),
    ],
)
def test_what_a_rule_opens_is_allowed_and_exits_with_0(
    config: Path, words: list[str], says: str
) -> None:
    done = explain(config, *words)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("ALLOWED")
    assert says in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["notes", "wild.example.com"], "no rule names wild.example.com"),
        (["notes", "api.example.com:80"], "opens 443/tcp only"),
        (["notes", "api.example.com:443/udp"], "opens 443/tcp only"),
        (["notes", "api.example.com", "--tls", "evil.example"], "does not name the TLS server"),
        (["notes", "10.3.0.1:5432"], "no rule names 10.3.0.1"),
        (["notes", "169.254.169.254:80"], "no rule names"),
        (["notes", "[::1]:443"], "no rule names"),
        (["offline", "api.example.com"], "no network"),
    ],
)
def test_what_no_rule_opens_is_denied_and_exits_with_1(
    config: Path, words: list[str], says: str
) -> None:
    done = explain(config, *words)
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith("DENIED")
    assert says in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["notes", "*.wild.example.com"], "more than one destination"),
        (["notes", "10.0.0.0/8:1/tcp"], "more than one destination"),
        (["notes", "a.example:1-9"], "more than one destination"),
        (["notes", "https://api.example.com"], "is a URL"),
        (["notes", "api.example.com:0"], "port 0"),
        (["notes", "api.example.com:443/sctp"], "not a protocol"),
        (["notes", ""], "empty"),
        (["notes", "a\nb"], "whitespace"),
        (["notes", "\x1b[2J"], "control"),
        (["notes", "api.example.com", "--tls", "not a name"], "--tls"),
        (["notes", "a.example:1/udp", "--tls", "a.example"], "leave --tls out"),
        (["nobody", "a.example"], "there is no server"),
        (["broken", "a.example"], "servers.broken.policy"),
    ],
)
def test_what_is_no_destination_is_refused(config: Path, words: list[str], says: str) -> None:
    done = explain(config, *words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    assert "\x1b" not in done.output
    assert done.stdout == ""


def test_explain_prints_json(config: Path) -> None:
    done = explain(config, "notes", "lan.example.com:80", "--json")
    told = json.loads(done.stdout)
    assert told["allowed"] is True
    assert "allow_private = true" in told["rule"]


def test_each_rule_has_its_trials_and_its_twins() -> None:
    trials, untried = list_trials(parse_egress(RULES), ["a.wild.example.com"])
    expected = {one.shown: one.expected for one in trials}
    assert expected["a.wild.example.com:443/tcp"] is True
    assert expected["api.example.com:443/tcp"] is True
    assert expected["api.example.com:9/tcp"] is False
    assert expected[f"api.example.com:443 as {FOREIGN_NAME}"] is False
    assert expected["db.example.com:5432/tcp"] is True
    assert expected["169.254.169.254:80/tcp"] is False
    assert expected["this host:22"] is False
    assert untried == ["*.wild.example.com:443", "10.2.0.0/16:5432/tcp"]
    shown = {one.shown: one.destination.tls_server_name for one in trials}
    assert shown["api.example.com:443/tcp"] == "api.example.com"
    assert shown["db.example.com:5432/tcp"] is None


def test_an_offline_policy_has_trials_that_must_all_fail() -> None:
    trials, untried = list_trials((), [])
    assert len(trials) >= 7
    assert not any(one.expected for one in trials)
    assert untried == []


def test_nothing_must_fail_where_everything_is_open() -> None:
    trials, _ = list_trials(parse_egress("unrestricted"), ["a.example:1/udp"])
    assert [one.shown for one in trials] == ["a.example:1/udp"]


@pytest.mark.parametrize("text", ["*.a.example", "10.0.0.0/8:1/tcp", "", "http://a.example"])
def test_a_destination_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RuleError):
        list_trials((), [text])


def trial(*, expected: bool) -> Trial:
    trials, _ = list_trials(parse_egress(["db.example.com:5432/tcp"]), ["db.example.com:6/tcp"])
    return next(one for one in trials if one.expected is expected and one.host.startswith("db"))


def network(kind: str, **details: Any) -> NetworkEvent:
    return NetworkEvent(time=1, server="x", launch="0", kind=kind, details=details)


def report(
    outcome: str = "refused", *, reached: bool = False, address: str = "198.51.100.1"
) -> Any:
    return {"id": 0, "reached": reached, "address": address, "outcome": outcome}


def test_what_was_reached_was_let_through_whatever_is_recorded() -> None:
    denial = network("deny", address="198.51.100.1", port=6, protocol="tcp", reason="default")
    result = judge(trial(expected=False), report(reached=True), [denial])
    assert result.passed
    assert not result.agreed


def test_a_refusal_by_the_destination_itself_is_not_the_policys() -> None:
    through = network("connect", address="198.51.100.1", port=5432, protocol="tcp", name="")
    result = judge(trial(expected=True), report(), [through])
    assert (result.passed, result.agreed) == (True, True)


def test_a_refusal_that_nobody_recorded_is_a_disagreement() -> None:
    elsewhere = network("connect", address="198.51.100.9", port=5432, protocol="tcp", name="")
    result = judge(trial(expected=True), report(), [elsewhere])
    assert (result.passed, result.agreed) == (False, False)


def test_a_denial_is_explained_and_agreed_with() -> None:
    denial = network("deny", address="198.51.100.1", port=6, protocol="tcp", reason="why\x1b")
    result = judge(trial(expected=False), report(), [denial])
    assert result.agreed
    assert r"(why\x1b)" in result.outcome


def test_a_name_without_address_is_let_through_where_it_may_be_looked_up() -> None:
    lookup = network("dns", name="db.example.com")
    nothing = report("no address", address="")
    assert judge(trial(expected=True), nothing, [lookup]).agreed
    assert not judge(trial(expected=True), nothing, []).agreed
    assert judge(trial(expected=False), nothing, [lookup]).agreed


@pytest.mark.parametrize("expected", [True, False])
def test_what_the_probe_does_not_report_is_a_disagreement(expected: bool) -> None:
    assert not judge(trial(expected=expected), None, []).agreed
