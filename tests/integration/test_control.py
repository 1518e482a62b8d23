"""The control socket and the audit log of real sandboxes: who is heard, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from sandboxed_mcp import ConfigError, ServerConfig, open_sandbox
from sandboxed_mcp.audit.lines import read_audit
from sandboxed_mcp.engine.control_sockets import find_control_socket
from sandboxed_mcp.events import BadLine
from tests.hostile.arena import containers_named
from tests.hostile.wire import wait_until
from tests.integration.cli_shell import new_name, open_run, sandboxed, write_config

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from sandboxed_mcp.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

WAITING = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
ROOT_FOR_OTHERS = 0o755


def server(**settings: Any) -> ServerConfig:
    values: dict[str, Any] = {"command": "python3", "args": ("-c", WAITING), **settings}
    return ServerConfig(name=new_name(), **values)


def socket_of(launch: str) -> Path:
    path = find_control_socket(os.environ, launch)
    assert path is not None
    return path


async def ask(sandbox: Sandbox, request: bytes) -> dict[str, Any]:
    """What the launcher answers to these bytes."""
    async with await anyio.connect_unix(socket_of(sandbox.plan.launch)) as stream:
        await stream.send(request)
        await stream.send_eof()
        return json.loads(await stream.receive())


@pytest.mark.parametrize(
    ("request_line", "error"),
    [
        (b"\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 5000 + b"\n", "not JSON"),
        (b"[]\n", "not an object"),
        (b"{}\n", "op: write apply or events"),
        (b'{"op": "stop"}\n', "op: write apply or events"),
        (b'{"op": ["events"]}\n', "op: write apply or events"),
        (b'{"op": "events", "all": 1}\n', "'all' is not a key"),
        (b'{"op": "apply"}\n', "egress: it is missing"),
        (b'{"op": "apply", "egress": [], "user": "0:0"}\n', "'user' is not a key"),
        (b'{"op": "apply", "egress": ["*"]}\n', "egress[0]"),
        (b'{"op": "apply", "egress": [], "dns": ["127.0.0.1"]}\n', "dns[0]"),
        (b'{"op": "apply", "egress": []}\n', "runs offline"),
        (b"x" * (2 << 20) + b"\n", "longer than"),
    ],
)
async def test_a_wrong_request_is_refused_and_changes_nothing(
    request_line: bytes, error: str
) -> None:
    async with open_sandbox(server()) as sandbox:
        try:
            answer = await ask(sandbox, request_line)
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            assert error == "longer than"  # it hung up on a request that does not end
        else:
            assert answer["ok"] is False
            assert error in answer["error"]
        await sandbox.send(b"{}\n")
        assert await sandbox.receive() == b"{}\n"


async def test_callers_that_hang_up_or_say_nothing_harm_nobody() -> None:
    async with open_sandbox(server()) as sandbox:
        path = socket_of(sandbox.plan.launch)
        silent = [await anyio.connect_unix(path) for _ in range(15)]
        for request in (b"", b'{"op":', b'{"op": "events"}\n'):
            async with await anyio.connect_unix(path) as stream:
                if request:
                    await stream.send(request)
        refused = [await anyio.connect_unix(path) for _ in range(2)]
        await refused[-1].send(b'{"op": "events"}\n')
        said = await refused[-1].receive()
        assert b"others are connected" in said
        for stream in (*silent, *refused):
            await stream.aclose()
        await sandbox.send(b"{}\n")
        assert await sandbox.receive() == b"{}\n"


async def test_events_are_streamed_from_the_beginning_to_the_end() -> None:
    async with open_sandbox(server()) as sandbox:
        stream = await anyio.connect_unix(socket_of(sandbox.plan.launch))
        await stream.send(b'{"op": "events"}\n')
        sandbox.recorder.record(BadLine, head="x", reason="y", answered=False)
        launch = sandbox.plan.launch
    received = b""
    async with stream:
        try:
            while True:
                received += await stream.receive()
        except anyio.EndOfStream:
            pass
    first, *events = map(json.loads, received.splitlines())
    assert first == {"ok": True}
    assert [event["event"] for event in events] == ["Started", "BadLine", "Exited"]
    assert find_control_socket(os.environ, launch) is None


async def test_another_user_is_not_heard_even_with_the_folder_open() -> None:
    async with open_sandbox(server()) as sandbox:
        path = socket_of(sandbox.plan.launch)
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert '"ok": true' in await anyio.to_thread.run_sync(connect_as, path, os.getuid())
        others = await anyio.to_thread.run_sync(connect_as, path, 65532)
        assert "Permission denied" in others
        path.chmod(0o666)
        path.parent.chmod(ROOT_FOR_OTHERS)
        try:
            others = await anyio.to_thread.run_sync(connect_as, path, 65532)
        finally:
            path.parent.chmod(0o700)
        assert "belongs to another user" in others


def connect_as(path: Path, user: int) -> str:
    """What a process of that user gets to hear; the test's own interpreter may be closed to it."""
    done = subprocess.run(
        ["/usr/bin/env", "perl", "-MSocket", "-e", _PERL, str(path)],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        user=user,
        cwd="/",
    )
    return done.stdout + done.stderr


_PERL = r"""
socket(my $s, PF_UNIX, SOCK_STREAM, 0) or die $!;
connect($s, sockaddr_un($ARGV[0])) or die "$!\n";
syswrite($s, "{\"op\": \"events\"}\n");
sysread($s, my $said, 1000);
print $said;
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "audit.jsonl"


async def test_the_audit_log_holds_what_the_events_say(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDIT_TOKEN", "s3same-0pen")
    config = server(secrets=({"name": "TOKEN", "from_env": "AUDIT_TOKEN"},))
    async with open_sandbox(config, audit=log) as sandbox:
        sandbox.recorder.record(BadLine, head="s3same-0pen", reason="y", answered=False)
    events, bad = read_audit(log)
    assert bad == 0
    assert [event["event"] for event in events] == ["Started", "BadLine", "Exited"]
    assert {event["launch"] for event in events} == {sandbox.plan.launch}
    assert not any("s3same" in str(event) for event in events)


async def test_a_server_that_cannot_be_recorded_is_killed_with_the_reason(log: Path) -> None:
    async with open_sandbox(server(), audit=log) as sandbox:
        await anyio.Path(log).unlink()
        sandbox.recorder.record(BadLine, head="x", reason="y", answered=False)
        with anyio.fail_after(10):
            status = await sandbox.wait()
    assert status.code == 137
    assert status.reason is not None
    assert "cannot be written: it was removed or replaced" in status.reason


async def test_a_log_that_the_server_could_swap_is_refused(log: Path) -> None:
    mount = {"source": str(log.parent), "target": "/data", "mode": "rw"}
    policy = {"user": f"{os.getuid()}:{os.getgid()}" if os.getuid() else "0:0"}
    await expect_refusal(server(audit=str(log), mounts=(mount,), policy=policy), "could swap")
    assert not await anyio.Path(log).exists()


async def test_a_log_that_another_sandbox_writes_is_refused(log: Path) -> None:
    config = server(audit=str(log))
    async with open_sandbox(config):
        await expect_refusal(config, "is in use")


async def test_no_container_is_made_when_the_log_is_refused(log: Path) -> None:
    await anyio.Path(log).symlink_to(log.with_name("elsewhere"))
    await expect_refusal(server(audit=str(log)), "symbolic link")
    assert not await anyio.Path(log.with_name("elsewhere")).exists()


async def expect_refusal(config: ServerConfig, why: str) -> None:
    before = len(containers_named(config.name))
    with pytest.raises(ConfigError, match=why) as caught:
        async with open_sandbox(config):
            pass
    assert "audit" in caught.value.setting
    assert len(containers_named(config.name)) == before


@contextmanager
def running(folder: Path, **settings: Any) -> Generator[tuple[str, subprocess.Popen[str]]]:
    name = new_name()
    config = write_config(folder, name, command="python3", args=["-c", WAITING], **settings)
    with open_run(config, name) as process:
        wait_until(lambda: bool(launches(name)), 30, lambda: f"{name}: {process.poll()}")
        yield name, process


def launches(name: str) -> list[dict[str, Any]]:
    found = json.loads(sandboxed("ps", "--json").stdout)
    return [one for one in found if one["server"] == name and one["state"] == "running"]


def test_watch_prints_lines_where_no_terminal_is(tmp_path: Path) -> None:
    with running(tmp_path) as (name, process):
        with subprocess.Popen(
            [sys.executable, "-m", "sandboxed_mcp", "watch", name],
            stdout=subprocess.PIPE,
            text=True,
        ) as watching:
            assert watching.stdout is not None
            assert json.loads(watching.stdout.readline())["event"] == "Started"
            process.send_signal(signal.SIGTERM)
            rest = [json.loads(line)["event"] for line in watching.stdout]
        assert rest == ["Exited"]
        assert watching.returncode == 0


def test_a_refused_apply_names_the_reason(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('egress = ["api.example.test"]\ndns = ["198.51.100.53"]\n')
    with running(tmp_path) as (name, _):
        done = sandboxed("policy", "apply", name, str(policy))
        assert done.returncode == 125
        assert "runs offline" in done.stderr
        policy.write_text('egress = ["*"]\n')
        done = sandboxed("policy", "apply", name, str(policy))
        assert done.returncode == 2
        assert "egress[0]" in done.stderr


@pytest.mark.parametrize("command", [["watch"], ["policy", "suggest"]])
def test_what_does_not_run_cannot_be_watched(command: list[str]) -> None:
    done = sandboxed(*command, "nobody-of-that-name")
    assert done.returncode == 2
    assert "no sandbox of that name" in done.stderr


def test_run_says_why_it_ended_when_the_log_went_away(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    log = tmp_path / "audit.jsonl"
    with running(tmp_path, audit="audit.jsonl") as (_, process):
        log.unlink()
        assert process.stdin is not None
        process.stdin.write("the server says this back, and it is no message\n")
        process.stdin.flush()
        wait_until(lambda: process.poll() is not None, 20, "the launcher has ended")
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 137
    assert f"the audit log '{log}' cannot be written: it was removed" in stderr


def launches_of(process: subprocess.Popen[str]) -> list[str]:
    found = json.loads(sandboxed("ps", "--json").stdout)
    return [one["launch"] for one in found if one["owner"].split("/")[3] == str(process.pid)]


def test_gc_removes_the_socket_of_a_killed_launcher(tmp_path: Path) -> None:
    with running(tmp_path) as (name, process):
        (launch,) = launches_of(process)
        path = socket_of(launch)
        process.kill()
        process.wait(10)
        wait_until(lambda: not containers_named(name), 20, "the container is gone")
    if path.exists():  # the sweep of another launch may have been first
        os.utime(path, (1, 1))
    assert sandboxed("gc").returncode == 0
    assert not path.exists()
