"""Policies: limits, user, runtime, and the files they stand in."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandboxed_mcp.cli.policy import policy as policy_command
from sandboxed_mcp.config.policies import find_policy, load_policy, packaged_policies
from sandboxed_mcp.config.policy import Limits, Policy
from sandboxed_mcp.config.problems import RefusedError
from sandboxed_mcp.config.sources import Host
from sandboxed_mcp.egress.rules import UNRESTRICTED, parse_rule
from sandboxed_mcp.errors import ConfigError

MIB = 1 << 20
HOST = Host(home="/home/nobody-here")


def make_policy(**settings: object) -> Policy:
    return Policy(**settings)  # pyright: ignore[reportArgumentType]


def test_an_empty_policy_grants_nothing() -> None:
    policy = Policy()
    assert policy.egress == ()
    assert policy.user == "65532:65532"
    assert policy.runtime is None
    assert policy.limits == Limits(
        memory=512 * MIB,
        cpus=1.0,
        pids=128,
        scratch=64 * MIB,
        message_size=64 * MIB,
        start_timeout=60,
    )


def test_the_packaged_default_equals_an_empty_policy() -> None:
    assert load_policy(packaged_policies() / "offline.toml") == Policy()


@pytest.mark.parametrize("path", sorted(packaged_policies().glob("*.toml")), ids=lambda p: p.stem)
def test_every_packaged_policy_is_valid(path: Path) -> None:
    assert load_policy(path)


def test_a_policy_is_frozen() -> None:
    policy = Policy()
    with pytest.raises(ValidationError):
        policy.user = "0:0"  # pyright: ignore[reportAttributeAccessIssue]


def test_egress_holds_parsed_rules() -> None:
    assert make_policy(egress=["a.example"]).egress == (parse_rule("a.example"),)
    assert make_policy(egress="unrestricted").egress is UNRESTRICTED


def test_a_policy_dumps_to_what_it_reads() -> None:
    policy = make_policy(
        egress=["a.example:1/udp", {"host": "b.example", "allow_private": True}],
        limits={"memory": "1GiB", "cpus": 0.5},
        user="1000:0",
        runtime="runsc",
    )
    assert Policy.model_validate_json(policy.model_dump_json()) == policy


@pytest.mark.parametrize(
    ("written", "user"),
    [
        ("1000", "1000:1000"),
        ("1000:100", "1000:100"),
        ("1000:0", "1000:0"),
        ("0:0", "0:0"),
        ("caller", "caller"),
    ],
)
def test_a_user_is_numeric_or_the_caller(written: str, user: str) -> None:
    assert make_policy(user=written).user == user


REFUSED: list[tuple[dict[str, object], str, str, str]] = [
    ({"user": "root"}, "user", "'root' is not a user", '"caller" for yourself'),
    ({"user": "0"}, "user", "'0' is root without saying so", 'write "0:0"'),
    ({"user": "0:1000"}, "user", "'0:1000' is root", 'write "0:0"'),
    ({"user": 1000}, "user", "1000 is not a user", '"uid:gid"'),
    ({"user": "1000:"}, "user", "'1000:' is not a user", '"uid:gid"'),
    ({"user": "-1:0"}, "user", "'-1:0' is not a user", '"uid:gid"'),
    ({"user": "01:1"}, "user", "'01:1' is not a user", '"uid:gid"'),
    ({"user": "1:1\n"}, "user", "is not a user", '"uid:gid"'),
    ({"user": "4294967295:1"}, "user", "'4294967295:1' is beyond the largest id", '"uid:gid"'),
    ({"runtime": "run c"}, "runtime", "'run c' is not the name of a runtime", '"runsc"'),
    ({"runtime": ""}, "runtime", "'' is not the name of a runtime", '"runsc"'),
    ({"runtime": "/usr/bin/runc"}, "runtime", "'/usr/bin/runc' is not the name", '"runsc"'),
    ({"runtime": 5}, "runtime", "5 is not the name of a runtime", '"runsc"'),
    ({"egress": "all"}, "egress", "egress is 'all'", '"unrestricted"'),
    ({"egress": ["*"]}, "egress[0]", "'*' names every host", "unrestricted"),
    (
        {"egress": ["a.example", {"host": "b.example", "tsl": "off"}]},
        "egress[1]",
        "unknown key 'tsl'",
        "did you mean 'tls'?",
    ),
    ({"allow_hosts": []}, "allow_hosts", "'allow_hosts' is unknown", "known are egress, limits"),
    ({"egres": []}, "egres", "'egres' is unknown", "did you mean 'egress'?"),
    ({"limits": {"memroy": 1}}, "limits.memroy", "'memroy' is unknown", "'memory'?"),
    ({"limits": []}, "limits", "a list is refused", "write a table"),
    ({"limits": {"memory": "1MiB"}}, "limits.memory", "'1MiB' is out of bounds", '"16MiB"'),
    ({"limits": {"memory": "2048GiB"}}, "limits.memory", "'2048GiB' is out of bounds", '"1024GiB"'),
    ({"limits": {"memory": "512m"}}, "limits.memory", "'512m' is not a size", '"512MiB"'),
    ({"limits": {"memory": True}}, "limits.memory", "True is not a size", '"512MiB"'),
    ({"limits": {"memory": float("inf")}}, "limits.memory", "inf is not a size", '"512MiB"'),
    ({"limits": {"memory": -1}}, "limits.memory", "-1 is not a size", '"512MiB"'),
    ({"limits": {"scratch": 1}}, "limits.scratch", "1 is out of bounds", '"4KiB"'),
    (
        {"limits": {"memory": "32MiB"}},
        "limits.scratch",
        "'64MiB' is more than memory ('32MiB')",
        "lower scratch or raise memory",
    ),
    ({"limits": {"message_size": "2GiB"}}, "limits.message_size", "out of bounds", '"1GiB"'),
    ({"limits": {"cpus": 0}}, "limits.cpus", "0 is out of bounds", "from 0.01 to 1024"),
    ({"limits": {"cpus": float("nan")}}, "limits.cpus", "nan is not a number", "from 0.01"),
    ({"limits": {"cpus": float("inf")}}, "limits.cpus", "inf is out of bounds", "from 0.01"),
    ({"limits": {"cpus": True}}, "limits.cpus", "true is not a number", "from 0.01"),
    ({"limits": {"cpus": "1"}}, "limits.cpus", "'1' is not a number", "from 0.01"),
    ({"limits": {"cpus": 10**5000}}, "limits.cpus", "a number that large is out", "from 0.01"),
    ({"limits": {"pids": 1}}, "limits.pids", "1 is out of bounds", "from 4 to 65536"),
    ({"limits": {"pids": 4.5}}, "limits.pids", "4.5 is not a number", "whole number"),
    ({"limits": {"start_timeout": 0}}, "limits.start_timeout", "0 is out", "from 0.1 to 3600"),
    ({"limits": {"start_timeout": 1e9}}, "limits.start_timeout", "out of bounds", "3600"),
]


@pytest.mark.parametrize(("settings", "setting", "problem", "fix"), REFUSED)
def test_a_refused_setting_is_named_with_value_and_fix(
    settings: dict[str, object], setting: str, problem: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy(**settings)
    assert caught.value.setting == setting
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_all_problems_are_shown_one_on_each_line() -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy(egress=["*"], user="root", limits={"cpus": 0, "pids": 0}, x=1)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "egress[0]",
        "limits.cpus",
        "limits.pids",
        "user",
        "x",
    ]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["caller", "unrestricted", "1GiB", "a.example"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
SETTINGS = st.sampled_from(["egress", "limits", "user", "runtime"])
LIMITS = st.sampled_from(list(Limits.model_fields))


@given(
    st.dictionaries(SETTINGS | st.text(max_size=3), JUNK, max_size=3)
    | st.dictionaries(LIMITS, JUNK).map(lambda limits: {"limits": limits})
)
def test_junk_is_a_policy_or_a_config_error(settings: dict[str, object]) -> None:
    with suppress(ConfigError):
        make_policy(**settings)


@pytest.mark.parametrize("wildcard", ["*.co.uk", "*.com.br:443", "*.gov.au"])
def test_wildcard_below_a_public_suffix_is_refused(wildcard: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy(egress=["api.example.com", wildcard])
    assert str(caught.value).startswith("egress[1]: '*.")
    assert "is a public suffix" in str(caught.value)


@pytest.mark.parametrize("wildcard", ["*.example.co.uk", "*.example.com", "*.pages.example.io"])
def test_wildcard_below_a_domain_of_somebody_is_fine(wildcard: str) -> None:
    assert make_policy(egress=[wildcard]).egress != ()


def test_resolvers_are_addresses_with_or_without_a_port() -> None:
    resolvers = ("198.51.100.53", "198.51.100.53:5353", "2001:db8::53", "[2001:db8::53]:53")
    assert make_policy(dns=list(resolvers)).dns == resolvers


@pytest.mark.parametrize(
    ("resolver", "problem"),
    [
        ("dns.example.com", "'dns.example.com' is not the address of a resolver"),
        ("198.51.100.53:0", "'198.51.100.53:0' is not the address of a resolver"),
        ("127.0.0.11", "'127.0.0.11' cannot be reached from a sandbox"),
        ("169.254.169.254", "'169.254.169.254' cannot be reached from a sandbox"),
    ],
)
def test_resolver_that_cannot_be_asked_is_refused(resolver: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_policy(dns=["198.51.100.53", resolver])
    assert str(caught.value).startswith(f"dns[1]: {problem}; ")


def test_an_error_of_a_policy_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[limits]\nmemory = "1"\n')
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    assert caught.value.file == str(path)
    assert str(caught.value).startswith(f"{path}: limits.memory: '1' is not a size; write bytes")


def test_a_policy_is_found_by_name_here_and_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    own = tmp_path / "policies" / "own.toml"
    own.write_text("")
    assert find_policy("own", tmp_path, HOST) == own
    assert find_policy("offline", tmp_path, HOST) == packaged_policies() / "offline.toml"
    assert find_policy("policies/own.toml", tmp_path, HOST) == own
    assert find_policy(str(own), Path("/"), HOST) == own


@pytest.mark.parametrize(
    ("written", "problem", "fix"),
    [
        ("nope", "there is no policy 'nope' in", "offline"),
        ("nope.toml", "nope.toml' is not there", "correct the path"),
        ("./nope", "nope' is not there", "correct the path"),
        ("~root/x.toml", "another user's home", "write it out"),
        ("a b", "'a b' is not a policy's name", "a path to a .toml file"),
        ("..", "'..' is not a policy's name", "a path to a .toml file"),
    ],
)
def test_a_policy_that_is_not_there_is_refused(
    tmp_path: Path, written: str, problem: str, fix: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        find_policy(written, tmp_path, HOST)
    assert problem in caught.value.problem
    assert fix in caught.value.fix


def test_a_local_policy_never_stands_in_for_a_packaged_one(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "offline.toml").write_text('egress = "unrestricted"')
    with pytest.raises(RefusedError, match=r"'offline' is in .* as well; rename yours"):
        find_policy("offline", tmp_path, HOST)


def test_policy_check_shows_what_a_policy_grants(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('egress = ["*.a.example"]\n[limits]\npids = 7\n')
    result = CliRunner().invoke(policy_command, ["check", str(path)])
    assert result.exit_code == 0
    assert f"{path}: valid" in result.output
    assert "egress   *.a.example:443" in result.output
    assert "pids 7" in result.output


def test_policy_check_shows_unrestricted_in_capitals(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('egress = "unrestricted"')
    result = CliRunner().invoke(policy_command, ["check", str(path)])
    assert "UNRESTRICTED" in result.output


def test_policy_check_fails_on_a_refused_setting(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("egres = []")
    result = CliRunner().invoke(policy_command, ["check", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'egress'?" in str(result.exception)
