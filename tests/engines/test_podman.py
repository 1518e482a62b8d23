"""Podman, rootful, through its Docker-compatible socket: the same promises."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sandboxed_mcp import LaunchError, Policy, ServerConfig, open_sandbox
from sandboxed_mcp.engine.connection import find_engine
from tests.engines.conftest import make_arena
from tests.hostile.arena import RUN, docker

if TYPE_CHECKING:
    from collections.abc import Generator

    from sandboxed_mcp.errors import ExitStatus
    from tests.engines.own import Own
    from tests.hostile.arena import Arena
    from tests.hostile.wire import Wire

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\nsys.exit(7)"
SUITE_SECONDS = 500.0
EGRESS = Path("tests", "hostile", "egress")
ELSEWHERE = (
    # A plain container on Podman may not ping either: the sysctl that Docker sets is missing.
    "addresses.py::test_ping_does_not_leave",
    # There is no hosts file at all.
    "private.py::test_no_alias_of_the_host_is_in_the_hosts_file",
    # They read Docker's report of the capabilities, or ask for `docker top` with ps's options, or
    # look for Docker's name of a cgroup.
    "pod.py::test_the_pod_is_what_the_plan_says",
    "pod.py::test_the_gateways_process_killed_ends_the_server_at_once",
    "pod.py::test_a_stopped_gateway_opens_nothing_and_goes_on_afterwards",
    "pod.py::test_the_gateway_out_of_memory_ends_the_server_at_once",
)
"""Cases whose attack or proof is made for Docker; the promise is the same."""


@pytest.fixture(scope="module")
def arena(attack: Path, podman: Own) -> Arena:
    return make_arena(attack, podman)


@pytest.fixture(scope="module")
def inside(arena: Arena) -> Generator[Wire, None, None]:
    with arena.hostile(tag="podman", env={"DECLARED": "yes"}).open() as wire:
        yield wire


def end_of(own: Own, code: str, **policy: Any) -> tuple[bytes, ExitStatus]:
    """What a program printed between one line of input and its end, and how it ended."""

    async def run() -> tuple[bytes, ExitStatus]:
        engine = await find_engine(own.env)
        config = ServerConfig(
            name=f"{RUN}-podman-end",
            command="python3",
            args=("-c", code),
            policy=Policy.model_validate(policy),
        )
        output = b""
        async with open_sandbox(config, engine=engine) as sandbox:
            await sandbox.send(b"a line\n")
            await sandbox.send_eof()
            try:
                while True:
                    output += await sandbox.receive()
            except anyio.EndOfStream:
                return output, await sandbox.wait()

    return anyio.run(run)


def test_input_ends_by_itself_and_the_exit_code_arrives(podman: Own) -> None:
    output, status = end_of(podman, ECHO)
    assert output == b"a line\n"
    assert status.code == 7


def test_memory_beyond_the_limit_ends_the_server(podman: Own) -> None:
    _, status = end_of(podman, "x = bytearray(1 << 28)", limits={"memory": "64MiB"})
    assert status.code == 137
    _, status = end_of(podman, "x = bytearray(1 << 28)", limits={"memory": "512MiB"})
    assert status.code == 0


def test_capabilities_are_gone_and_sockets_below_ip_do_not_open(inside: Wire) -> None:
    fields = inside.probe("insight.status")
    held = {name: fields[name] for name in fields if name.startswith("Cap")}
    assert set(held.values()) == {"0" * 16}, held
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert inside.probe("kernel.open_socket", 17, 3, 0x300) in {"EPERM", "EACCES", "EAFNOSUPPORT"}
    assert inside.probe("kernel.open_socket", 2, 3, 1) == "EPERM"


def test_environment_holds_nothing_of_podman(inside: Wire) -> None:
    for entries in inside.probe("insight.environment_by_every_route").values():
        names = {entry.partition("=")[0] for entry in entries}
        assert names - {"PATH", "LC_CTYPE"} == {"DECLARED", "HOME", "HOSTNAME"}


def test_scratch_space_is_the_only_place_to_write(inside: Wire) -> None:
    found = inside.probe("insight.writable_places")
    assert set(found["created"]) == {"/dev/mqueue", "/dev/shm", "/tmp"}, found


def test_host_names_of_the_machine_stay_outside(inside: Wire) -> None:
    ours = Path("/etc/hosts").read_text(encoding="utf-8")
    theirs = inside.probe("insight.read", "/etc/hosts")
    assert not set(ours.splitlines()) & set(theirs.splitlines()) - {"", "127.0.0.1 localhost"}


def test_container_has_no_log_and_namespaces_of_its_own(arena: Arena, podman: Own) -> None:
    hostile = arena.hostile(tag="podman")
    with hostile.open():
        (found,) = json.loads(docker("inspect", hostile.container(), env=podman.env))
        assert found["HostConfig"]["LogConfig"]["Type"] == "none"
        assert found["HostConfig"]["AutoRemove"] is True
        for kind in ("cgroup", "ipc", "mnt", "net", "pid", "uts"):
            theirs = Path("/proc", str(found["State"]["Pid"]), "ns", kind).readlink()
            assert theirs != Path("/proc/self/ns", kind).readlink(), kind


def test_container_does_not_outlive_a_killed_launcher(arena: Arena) -> None:
    hostile = arena.hostile("--stubborn", tag="podman")
    with hostile.open() as wire:
        hostile.container()
        wire.process.send_signal(signal.SIGKILL)
        hostile.wait_gone()


def test_runtime_that_podman_does_not_use_is_refused(podman: Own) -> None:
    with pytest.raises(LaunchError, match="Runtime is 'runc', not 'crun'"):
        end_of(podman, ECHO, runtime="crun")


@pytest.mark.parametrize("module", ["names", "addresses", "private", "tls", "pod", "works"])
def test_pod_holds_against_the_hostile_suite(podman: Own, module: str) -> None:
    file = str(EGRESS / f"test_egress_{module}.py")
    left_out = [f"--deselect={EGRESS}/test_egress_{each}" for each in ELSEWHERE]
    code, output = podman.pytest("--timeout=100", *left_out, file, seconds=SUITE_SECONDS)
    assert code == 0, output
