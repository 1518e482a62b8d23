"""gVisor as the runtime of servers: offline, and behind rules on the namespace's own stack."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from sandboxed_mcp import ConfigError, Policy, ServerConfig, open_sandbox
from sandboxed_mcp.engine.connection import find_engine
from tests.engines.conftest import make_arena
from tests.engines.own import GVISOR, GVISOR_HOST, GVISOR_NONE
from tests.hostile.arena import RUN

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from sandboxed_mcp.errors import ExitStatus
    from tests.engines.own import Own
    from tests.hostile.arena import Arena
    from tests.hostile.wire import Wire

SUITE_SECONDS = 300.0
RULE = "db.example.com:5432/tcp"
# gVisor's kernel calls itself so, whatever the machine's is.
KERNEL = "Sun Jan 10 15:06:54 PST 2016"


@pytest.fixture(scope="module")
def arena(attack: Path, docker_with_gvisor: Own) -> Arena:
    return make_arena(attack, docker_with_gvisor)


@pytest.fixture(scope="module")
def inside(arena: Arena) -> Generator[Wire, None, None]:
    with arena.hostile(tag="gvisor", policy={"runtime": GVISOR_NONE}).open() as wire:
        yield wire


def end_of(own: Own, code: str, policy: Mapping[str, object]) -> ExitStatus:
    """How a program ended."""

    async def run() -> ExitStatus:
        engine = await find_engine(own.env)
        config = ServerConfig(
            name=f"{RUN}-gvisor-end",
            command="python3",
            args=("-c", code),
            policy=Policy.model_validate(policy),
        )
        async with open_sandbox(config, engine=engine) as sandbox:
            return await sandbox.wait()

    return anyio.run(run)


@pytest.mark.parametrize("runtime", [GVISOR_NONE, GVISOR_HOST])
def test_offline_server_runs_on_gvisors_kernel(arena: Arena, runtime: str) -> None:
    with arena.hostile(tag="gvisor", policy={"runtime": runtime}).open() as wire:
        assert KERNEL in wire.probe("insight.read", "/proc/version")


def test_capabilities_are_gone_and_sockets_below_ip_do_not_open(inside: Wire) -> None:
    fields = inside.probe("insight.status")
    held = {name: fields[name] for name in fields if name.startswith("Cap")}
    assert set(held.values()) == {"0" * 16}, held
    assert inside.probe("kernel.open_socket", 17, 3, 0x300) in {"EPERM", "EACCES", "EAFNOSUPPORT"}
    assert inside.probe("kernel.open_socket", 2, 3, 1) in {"EPERM", "EACCES"}


def test_exit_code_arrives(docker_with_gvisor: Own) -> None:
    assert end_of(docker_with_gvisor, "raise SystemExit(7)", {"runtime": GVISOR_NONE}).code == 7


def test_memory_beyond_the_limit_ends_the_server(docker_with_gvisor: Own) -> None:
    code = "x = bytearray(b'x') * (1 << 28)"
    for memory, expected in (("128MiB", 137), ("512MiB", 0)):
        policy = {"runtime": GVISOR_NONE, "limits": {"memory": memory}}
        assert end_of(docker_with_gvisor, code, policy).code == expected


def test_container_does_not_outlive_a_killed_launcher(arena: Arena) -> None:
    hostile = arena.hostile("--stubborn", tag="gvisor", policy={"runtime": GVISOR_NONE})
    with hostile.open() as wire:
        hostile.container()
        wire.process.send_signal(signal.SIGKILL)
        hostile.wait_gone()


def test_death_of_the_server_ends_the_session_with_the_reason(arena: Arena) -> None:
    hostile = arena.hostile(tag="gvisor", policy={"runtime": GVISOR_NONE})
    with hostile.open() as wire, pytest.raises(EOFError, match="exit code 3"):
        wire.call("die", code=3)


@pytest.mark.parametrize("runtime", [GVISOR, GVISOR_NONE])
def test_rules_are_refused_where_gvisors_own_stack_would_pass_them_by(
    docker_with_gvisor: Own, runtime: str
) -> None:
    policy = {"runtime": runtime, "egress": [RULE], "dns": ["198.51.100.53"]}
    with pytest.raises(ConfigError, match=r"policy\.runtime: .*would not bind it"):
        end_of(docker_with_gvisor, "raise SystemExit(7)", policy)


def test_rules_bind_gvisor_on_the_namespaces_own_stack(docker_with_gvisor: Own) -> None:
    code, output = docker_with_gvisor.pytest(
        "--timeout=100", "tests/engines/pods_under_gvisor.py", seconds=SUITE_SECONDS
    )
    assert code == 0, output
