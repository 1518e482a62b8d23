"""What an engine says of itself, and what doctor makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from sandboxed_mcp.cli.checks import (
    check_engine,
    check_images,
    check_leftovers,
    check_limits,
    check_proof,
    check_runtimes,
    check_security,
)
from sandboxed_mcp.cli.inside import ATTEMPTS
from sandboxed_mcp.cli.probe import Attempt, parse_report
from sandboxed_mcp.engine.api import Engine
from sandboxed_mcp.engine.dial import Endpoint
from sandboxed_mcp.engine.orphans import Orphan

GOOD: dict[str, Any] = {
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "CgroupVersion": "2",
    "CgroupDriver": "systemd",
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
    "Driver": "overlay2",
    "Runtimes": {"runc": {}, "runsc": {}},
    "DefaultRuntime": "runc",
}


def runc(version: str, commit: str = "") -> dict[str, Any]:
    part = {"Name": "runc", "Version": version, "Details": {"GitCommit": commit}}
    return {"Version": "26.1.5", "Components": [part]}


def test_a_good_engine_has_nothing_to_do() -> None:
    local = Engine(Endpoint("unix:///run/docker.sock", "default socket"), "1.45")
    found = [
        *check_engine(local, runc("1.2.3"), GOOD),
        *check_runtimes(runc("1.2.3"), GOOD),
        *check_limits(GOOD),
        *check_security(GOOD),
    ]
    assert {one.state for one in found} == {"ok"}
    assert not any(one.fix for one in found)


@pytest.mark.parametrize("key", ["MemoryLimit", "SwapLimit", "PidsLimit", "CpuCfsQuota"])
def test_a_limit_that_the_kernel_lacks_fails(key: str) -> None:
    for info in (GOOD | {key: False}, {k: v for k, v in GOOD.items() if k != key}):
        (found,) = check_limits(info)
        assert found.state == "fail"
        assert found.fix


@pytest.mark.parametrize(
    ("version", "commit", "state"),
    [
        ("1.1.11", "", "warn"),
        ("1.0.0-rc93", "", "warn"),
        ("1.1.12", "", "ok"),
        ("v1.2.0", "", "ok"),
        ("1.1.5+ds1", "1.1.5+ds1-1+deb12u1", "ok"),
        ("1.1.5+ds1", "1.1.5+ds1-1", "warn"),
        ("weird\x1b[0m", "", "warn"),
        ("", "", "warn"),
    ],
)
def test_a_runc_with_a_known_way_out_is_named(version: str, commit: str, state: str) -> None:
    found = check_runtimes(runc(version, commit), GOOD)[-1]
    assert (found.name, found.state) == ("runc", state)
    assert found.text.isprintable()


@pytest.mark.parametrize(
    ("options", "seccomp", "lsm"),
    [
        ([], "fail", "warn"),
        (["name=seccomp,profile=unconfined"], "ok", "warn"),
        (["name=seccomp,profile=default", "name=selinux"], "ok", "ok"),
        (["name=rootless", "name=seccomp"], "ok", "warn"),
    ],
)
def test_a_missing_layer_is_named(options: list[str], seccomp: str, lsm: str) -> None:
    found = {one.name: one.state for one in check_security({"SecurityOptions": options})}
    assert (found["seccomp"], found["lsm"]) == (seccomp, lsm)


@pytest.mark.parametrize(
    ("endpoint", "state"),
    [
        (Endpoint("tcp://10.0.0.1:2375", "DOCKER_HOST"), "warn"),
        (Endpoint("tcp://10.0.0.1:2376", "DOCKER_HOST", "/tls", tls_verify=False), "warn"),
        (Endpoint("tcp://10.0.0.1:2376", "DOCKER_HOST", "/tls"), "ok"),
        (Endpoint("ssh://host", "DOCKER_HOST"), "ok"),
    ],
)
def test_an_engine_asked_in_the_clear_is_named(endpoint: Endpoint, state: str) -> None:
    found = check_engine(Engine(endpoint, "1.45"), runc("1.2.3"), GOOD)
    assert [one.state for one in found if one.name == "address"] == [state]


def test_an_image_that_is_missing_or_of_another_recipe_is_named() -> None:
    expected = {"python": "python:1", "notes": "notes:1", "node": "node:1", "base": "base:1"}
    found = check_images(
        expected, {"python": None, "notes": None, "node": "node:0", "base": "base:1"}
    )
    assert [one.state for one in found] == ["fail", "warn", "warn", "ok"]
    assert found[0].fix == "run 'sandboxed-mcp build python'"


def test_leftovers_are_counted() -> None:
    orphans = [Orphan("container", "1", "o"), Orphan("secrets", "/x", "o")]
    assert check_leftovers([]).state == "ok"
    assert "containers: 1, folders of secret files: 1" in check_leftovers(orphans).text


def test_one_possible_attempt_fails_the_proof() -> None:
    blocked = Attempt("dns", "network", "look up", blocked=True, outcome="EAI_AGAIN")
    possible = Attempt("udp", "network", "UDP", blocked=False, outcome="sent")
    assert [one.state for one in check_proof([blocked], 1.0)] == ["ok"]
    assert [one.state for one in check_proof([blocked, possible], 1.0)] == ["fail"]


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"garbage\n[]\n1\nnull\n",
        b'{"id": "dns"}\n',
        b'{"id": "dns", "blocked": 1}\n',
        b'{"id": "dns", "blocked": "true"}\n',
        b'{"id": "other", "blocked": true}\n',
        b'{"id": "dns", "blocked": true, "outcome": "x"',
        b'{"id": ["dns"], "blocked": true}\n',
        b"\xff\xfe\n",
    ],
)
def test_what_is_not_reported_as_blocked_counts_as_possible(report: bytes) -> None:
    (found,) = parse_report(report, ["dns"], "not reported")
    assert not found.blocked


def test_an_outcome_is_sanitized() -> None:
    report = b'{"id": "dns", "blocked": true, "outcome": "\\u001b[2J"}\n'
    (found,) = parse_report(report, ["dns"], "not reported")
    assert found.blocked
    assert found.outcome.isprintable()


def test_every_attempt_has_a_title_that_fits() -> None:
    for group, title, _ in ATTEMPTS.values():
        assert len(group) < 12
        assert len(title) < 32
