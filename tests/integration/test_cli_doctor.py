"""`doctor`, `build` and the demonstration: the attempts from inside, in both directions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sandboxed_mcp.cli import inside
from tests.hostile.arena import docker
from tests.integration.cli_shell import sandboxed

if TYPE_CHECKING:
    from sandboxed_mcp.engine.api import Engine

pytestmark = pytest.mark.usefixtures("engine")
IMAGE = "sandboxed-mcp/python:latest"
SOURCE = Path(inside.__file__).read_text(encoding="utf-8")
# What a container can do that is given everything but a network; the rest needs one, or the
# host's own files and processes.
POSSIBLE = (
    "shadow",
    "write_usr",
    "write_etc",
    "write_root",
    "become_root",
    "capability",
    "mount",
    "unshare",
    "raw_socket",
    "load_module",
    "processes",
    "scratch",
    "memory",
    "variable",
    "docker_host",
    "home",
    "host_file",
    "write_kernel",
    "engine_socket",
)


def test_doctor_has_something_to_say_of_each_part() -> None:
    done = sandboxed("doctor", "--json")
    findings = json.loads(done.stdout)
    assert done.returncode == any(one["state"] == "fail" for one in findings)
    names = {one["name"] for one in findings}
    assert {"engine", "storage", "runtimes", "limits", "seccomp", "lsm", "users"} <= names
    assert {"image python", "leftovers", "proof"} <= names
    assert all(one["fix"] for one in findings if one["state"] == "warn")


def test_the_proof_holds_on_this_engine() -> None:
    findings = json.loads(sandboxed("doctor", "--json").stdout)
    assert [one["state"] for one in findings if one["name"] == "proof"] == ["ok"]


def test_doctor_reads_well_in_a_pipe() -> None:
    done = sandboxed("doctor")
    assert all(line.split()[0] in {"ok", "warn", "fail", "->"} for line in done.stdout.splitlines())
    assert done.stderr == ""


def test_build_leaves_what_is_there() -> None:
    done = sandboxed("build", "python")
    assert done.returncode == 0, done.stderr
    assert [line.endswith("is up to date") for line in done.stdout.splitlines()] == [True] * 2
    assert done.stderr == ""


def test_the_demonstration_shows_both_sides_within_80_columns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxed_mcp.cli.demo"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("blocked  " in line for line in lines) == len(inside.ATTEMPTS)
    assert "search_notes, note_stats" in done.stdout
    assert f"all {len(inside.ATTEMPTS)} attempts were blocked" in done.stdout
    assert done.stderr == ""


def test_the_demonstration_fails_without_an_engine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandboxed_mcp.cli.demo"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "DOCKER_HOST": "unix:///nonexistent.sock"},
    )
    assert done.returncode == 125
    assert "/nonexistent.sock" in done.stderr
    assert "Traceback" not in done.stderr


def test_each_attempt_succeeds_where_nothing_holds_it(engine: Engine) -> None:
    assert engine.version
    facts = {"variable": "TOKEN", "home": "/root", "file": "/etc/hostname", "pid": 1}
    facts |= {"start": "0", "pids": 20, "scratch": 1024 * 1024, "memory": 32 * 1024 * 1024}
    task = json.dumps({"attempts": POSSIBLE, "facts": facts})
    open_wide = [f"--cap-add={name}" for name in ("SYS_ADMIN", "SYS_MODULE", "NET_RAW")]
    open_wide += ["--security-opt=seccomp=unconfined", "--user=0:0"]
    # The socket of an engine that is none: a listener inside the container.
    listen = (
        "import socket, os, sys; os.makedirs('/run/podman'); s = socket.socket(socket.AF_UNIX); "
        "s.bind('/run/podman/podman.sock'); s.listen(); exec(sys.argv.pop(1))"
    )
    said = docker(
        "run", "--rm", "--network=none", *open_wide, "--security-opt=systempaths=unconfined",
        "-e", "TOKEN=x", "-e", "DOCKER_HOST=x", "-e", "HOME=/root",
        IMAGE, "python3", "-c", listen, SOURCE, task,
    )  # fmt: skip
    found: dict[str, Any] = {one["id"]: one for one in map(json.loads, said.splitlines())}
    still_blocked = {name: found.get(name) for name in POSSIBLE if _blocked(found.get(name))}
    assert not still_blocked


def _blocked(told: dict[str, Any] | None) -> bool:
    return told is None or told["blocked"] or "not tried" in told["outcome"]


# A namespace of its own where the addresses and the name of the attempts are there; nothing of
# it leads anywhere.
NETWORK = """
import os, socket, sys, tempfile, threading
import dns.message, dns.rrset

def run(command):
    if os.system(command):
        sys.exit(f"cannot prepare the network: {command}")

def answer_names():
    while True:
        data, peer = names.recvfrom(4096)
        if len(data) < 12:
            continue
        reply = dns.message.make_response(dns.message.from_wire(data))
        question = reply.question[0]
        if question.rdtype == 1:
            reply.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", "198.51.100.1"))
        names.sendto(reply.to_wire(), peer)

run("ip link set lo up && ip link add v0 type veth peer name v1")
run("ip addr add 198.51.100.1/32 dev lo && ip addr add 2001:db8::1/128 dev lo nodad")
with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
    settings.write("nameserver 198.51.100.1\\n")
    settings.flush()
    run(f"mount --bind {settings.name} /etc/resolv.conf")
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("198.51.100.1", 53))
threading.Thread(target=answer_names, daemon=True).start()
kept = [socket.create_server((address, 443), family=family) for family, address in (
    (socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1"))]
exec(sys.argv.pop(1), {"__name__": "__main__"})
"""


def test_each_attempt_on_the_network_succeeds_where_there_is_one() -> None:
    attempts = [name for name, (group, *_) in inside.ATTEMPTS.items() if group == "network"]
    task = json.dumps({"attempts": attempts, "facts": {}})
    command = ["unshare", "--net", "--mount", sys.executable, "-c", NETWORK, SOURCE, task]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {one["id"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert not {name: found.get(name) for name in attempts if _blocked(found.get(name))}


def test_every_attempt_is_shown_to_be_able_to_succeed() -> None:
    elsewhere = {"memory_device": "a device that containers never have"}
    elsewhere |= {"trace": "needs the launcher's process in sight"}
    by_network = {name for name, (group, *_) in inside.ATTEMPTS.items() if group == "network"}
    assert {*POSSIBLE, *by_network, *elsewhere} == set(inside.ATTEMPTS)
