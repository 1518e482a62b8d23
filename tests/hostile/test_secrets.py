"""Promise *secrets*: a value is in the server's environment or secret file, and nowhere else."""

from __future__ import annotations

import base64
import json
import logging
import os
import secrets
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import pytest

from sandboxed_mcp import ServerExitedError, connect, open_sandbox
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.errors import SandboxError
from sandboxed_mcp.events import render_event
from tests.hostile.arena import docker, left_in, watchdogs_of
from tests.hostile.test_limits import connect_over, words_of
from tests.hostile.wire import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.arena import Arena, Hostile
    from tests.hostile.wire import Wire

NOBODY = 65534
TELLING = 8
"""So much of a secret in one piece is already a leak."""


@dataclass(frozen=True)
class Canaries:
    """A server with one secret of each kind.

    Attributes:
        hostile: The server.
        variable: The value delivered as `TOKEN`.
        file: The value delivered as `/run/secrets/KEY`.
        runtime: The folder where the launcher keeps secret files.
        env: The launcher's environment.
    """

    hostile: Hostile
    variable: str
    file: str
    runtime: Path
    env: dict[str, str]

    def leaked_in(self, text: str) -> list[str]:
        """Pieces of the values that stand in a text."""
        values = (self.variable, self.file)
        pieces = {v[i : i + TELLING] for v in values for i in range(len(v) - TELLING + 1)}
        return sorted(piece for piece in pieces if piece in text)


@pytest.fixture
def canaries(arena: Arena, tmp_path: Path) -> Canaries:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    variable, file = f"v{secrets.token_hex(16)}", f"f{secrets.token_hex(16)}"
    listed = ["TOKEN", {"name": "KEY", "as": "file"}]
    hostile = arena.hostile(tag="secret", secrets=listed)
    env = {**os.environ, "TOKEN": variable, "KEY": file, "XDG_RUNTIME_DIR": str(runtime)}
    return Canaries(hostile, variable, file, runtime, env)


@contextmanager
def in_environment(canaries: Canaries) -> Generator[None]:
    """The library reads the process's own environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TOKEN", "KEY", "XDG_RUNTIME_DIR"):
            patch.setenv(name, canaries.env[name])
        yield


@pytest.fixture
def running(canaries: Canaries) -> Generator[Wire]:
    with canaries.hostile.open(env=canaries.env) as wire:
        yield wire


@pytest.mark.claim("secrets", twin=True)
def test_server_finds_its_secrets_where_they_belong(canaries: Canaries, running: Wire) -> None:
    routes = running.probe("insight.environment_by_every_route")
    assert f"TOKEN={canaries.variable}" in routes["/proc/1/environ"]
    assert running.probe("insight.read", "/run/secrets/KEY") == canaries.file
    assert running.probe("insight.list_folder", "/run/secrets") == ["KEY"]
    assert canaries.leaked_in(json.dumps(routes)) != []


@pytest.mark.claim("secrets")
def test_file_secret_is_not_in_the_environment_and_resists_change(
    canaries: Canaries, running: Wire
) -> None:
    assert canaries.file not in json.dumps(running.probe("insight.environment_by_every_route"))
    assert "ok" not in running.probe("insight.modify", "/run/secrets/KEY").values()


@pytest.mark.claim("secrets")
def test_engine_shows_a_value_only_as_the_containers_own_variable(
    canaries: Canaries, running: Wire
) -> None:
    container = canaries.hostile.container()
    (found,) = json.loads(docker("inspect", container))
    env: list[str] = found["Config"].pop("Env")
    assert [entry for entry in env if canaries.leaked_in(entry)] == [f"TOKEN={canaries.variable}"]
    assert canaries.leaked_in(json.dumps(found)) == []
    assert found["HostConfig"]["LogConfig"]["Type"] == "none"
    assert running.call("say", text="still here") == "said"


@pytest.mark.claim("secrets")
def test_no_other_place_of_the_engine_holds_a_value(canaries: Canaries, running: Wire) -> None:
    container = canaries.hostile.container()
    assert running.call("say", text="up") == "said"
    listed = docker(
        "ps", "-a", "--no-trunc", "--format", "{{json .}}", "--filter", f"id={container}"
    )
    image = docker("inspect", "-f", "{{.Image}}", container)
    history = docker("history", "--no-trunc", "--format", "{{json .}}", image)
    now = int(time.time())
    window = (f"--since={now - 600}", f"--until={now + 1}")
    events = docker("events", *window, "--format={{json .}}", f"--filter=container={container}")
    assert container in events
    assert canaries.leaked_in(listed + history + events) == []


@pytest.mark.claim("secrets")
def test_no_process_of_the_host_shows_a_value(canaries: Canaries, running: Wire) -> None:
    wait_until(lambda: watchdogs_of(running.pid), 10, "the watchdog")
    (watchdog,) = watchdogs_of(running.pid)
    commands: list[list[str]] = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
    assert any(canaries.hostile.name in words for words in commands)
    assert canaries.leaked_in(json.dumps(commands)) == []
    assert canaries.leaked_in(Path(f"/proc/{watchdog}/environ").read_text(encoding="utf-8")) == []


@pytest.mark.claim("secrets")
def test_dry_run_names_secrets_and_shows_none(canaries: Canaries) -> None:
    done = subprocess.run(
        [*canaries.hostile.argv, "--dry-run"],
        env=canaries.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "TOKEN" in done.stdout
    assert canaries.leaked_in(done.stdout + done.stderr) == []
    assert left_in(canaries.runtime) == []


def encodings(value: str) -> list[str]:
    return [
        value,
        repr(value),
        json.dumps({"token": value}),
        base64.b64encode(f"user:{value}".encode()).decode(),
        value.encode().hex(),
        f"Authorization: Bearer {value}",
    ]


@pytest.mark.claim("secrets")
def test_value_that_the_server_writes_to_stderr_is_redacted(
    canaries: Canaries, running: Wire
) -> None:
    for text in (*encodings(canaries.variable), *encodings(canaries.file)):
        running.call("say", text=text)
    running.call("say", text="the last line")
    running.close_stdin()
    running.wait(30)
    assert "the last line" in running.stderr
    assert running.stderr.count("[secret TOKEN]") >= 6
    assert canaries.leaked_in(running.stderr) == []
    assert canaries.variable.encode().hex() not in running.stderr


@pytest.mark.claim("secrets")
def test_value_that_the_server_prints_to_stdout_is_redacted(
    canaries: Canaries, running: Wire
) -> None:
    for text in encodings(canaries.variable):
        running.call("print_text", text=text)
    running.close_stdin()
    running.wait(30)
    assert running.stderr.count("stdout line not passed on") == 6
    assert canaries.leaked_in(running.stderr) == []


@pytest.mark.claim("secrets")
def test_value_at_the_cut_of_a_bad_line_is_redacted(canaries: Canaries, running: Wire) -> None:
    running.call("print_text", text="." * 185 + canaries.variable)
    running.close_stdin()
    running.wait(30)
    assert "stdout line not passed on" in running.stderr
    assert canaries.leaked_in(running.stderr) == []


@pytest.mark.claim("secrets")
def test_value_in_the_middle_of_a_very_long_stderr_line_is_redacted(
    canaries: Canaries, running: Wire
) -> None:
    half = len(canaries.variable) // 2
    # Where the line is cut depends on how the engine cuts the stream, so: several times.
    for _ in range(5):
        before = len(running.stderr_bytes)
        running.call("mutter", text="." * 70_000 + canaries.variable[:half])
        with suppress(AssertionError):  # whoever holds it back until the line ends does well
            wait_until(lambda size=before: len(running.stderr_bytes) > size + 70_000, 1, "a half")
        running.call("mutter", text=canaries.variable[half:] + "\n")
    running.close_stdin()
    running.wait(30)
    assert canaries.leaked_in(running.stderr) == []


@pytest.mark.claim("secrets")
def test_value_written_in_two_pieces_is_redacted(canaries: Canaries, running: Wire) -> None:
    half = len(canaries.variable) // 2
    running.call("mutter", text="token is " + canaries.variable[:half])
    running.call("mutter", text=canaries.variable[half:] + "\n")
    running.close_stdin()
    running.wait(30)
    assert "token is [secret TOKEN]" in running.stderr
    assert canaries.leaked_in(running.stderr) == []


@pytest.mark.claim("secrets")
def test_library_shows_no_value_in_tail_events_errors_and_logs(
    canaries: Canaries, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def use() -> str:
        told: list[str] = []
        async with open_sandbox(canaries.hostile.config) as sandbox:
            async with connect_over(sandbox) as client:
                for text in (*encodings(canaries.variable), *encodings(canaries.file)):
                    await client.call_tool("say", {"text": text})
                    await client.call_tool("print_text", {"text": text})
                told.append(sandbox.stderr_tail)
                try:
                    await client.call_tool("die", {"code": 4})
                except Exception as error:  # noqa: BLE001 - the SDK's own
                    told.append(words_of(error))
            told += map(render_event, sandbox.events.take_queued())
            told += [str(await sandbox.exited_error()), repr(sandbox.plan)]
        return "\n".join(told)

    with in_environment(canaries):
        told = anyio.run(use)
        resolved = resolve_server(canaries.hostile.config, environ=os.environ)
    assert told.count("[secret TOKEN]") > 6
    assert "exit code 4" in told
    assert canaries.leaked_in(told) == []
    assert canaries.leaked_in(caplog.text) == []
    assert canaries.leaked_in(repr(resolved) + repr(canaries.hostile.config)) == []


@pytest.mark.claim("secrets")
def test_audit_log_holds_no_value(canaries: Canaries) -> None:
    audit = canaries.runtime.parent / "audit.jsonl"
    canaries.hostile.table["audit"] = str(audit)
    with canaries.hostile.open(env=canaries.env) as wire:
        for text in (*encodings(canaries.variable), *encodings(canaries.file)):
            wire.call("print_text", text=text)
    canaries.hostile.wait_gone()
    log = audit.read_text(encoding="utf-8")
    assert "[secret TOKEN]" in log
    assert "Exited" in log
    assert canaries.leaked_in(log) == []
    assert audit.stat().st_mode & 0o077 == 0


@pytest.mark.claim("secrets")
def test_client_sees_what_the_server_sends_it_unredacted(canaries: Canaries) -> None:
    # A reply is the server's own business with its client: bytes are never altered.
    async def use() -> str:
        async with connect(canaries.hostile.config) as client:
            arguments = {"module": "insight", "name": "read", "args": ["/run/secrets/KEY"]}
            result = await client.call_tool("probe", arguments)
            return str(result)

    with in_environment(canaries):
        assert canaries.file in anyio.run(use)


@pytest.mark.claim("secrets")
def test_error_of_a_refused_launch_shows_no_value(canaries: Canaries) -> None:
    canaries.hostile.table["policy"] = {"runtime": "no-such-runtime"}

    async def use() -> None:
        async with open_sandbox(canaries.hostile.config):
            pytest.fail("it was started")

    with in_environment(canaries), pytest.raises(SandboxError) as caught:
        anyio.run(use)
    assert canaries.leaked_in(f"{caught.value!r} {caught.getrepr(showlocals=False)}") == []
    assert left_in(canaries.runtime) == []


@pytest.mark.claim("secrets")
def test_value_written_in_place_of_a_name_is_refused_and_not_shown(canaries: Canaries) -> None:
    canaries.hostile.table["secrets"] = [f"sk-{canaries.variable}"]
    done = subprocess.run(
        canaries.hostile.argv, capture_output=True, text=True, timeout=60, check=False, input=""
    )
    assert done.returncode == 2
    assert "secrets[0]" in done.stderr
    assert canaries.leaked_in(done.stderr) == []


def secret_files(canaries: Canaries) -> list[Path]:
    return list(canaries.runtime.glob("sandboxed-mcp-*/files/*"))


@pytest.mark.claim("secrets")
def test_secret_file_is_closed_to_other_users_and_gone_afterwards(canaries: Canaries) -> None:
    canaries.runtime.chmod(0o755)
    with canaries.hostile.open(env=canaries.env) as wire:
        assert wire.call("say", text="up") == "said"
        files = secret_files(canaries)
        assert [file.name for file in files] == ["KEY"]
        (path,) = files
        assert path.read_text(encoding="utf-8") == canaries.file
        script = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); "
        script += f"print(open({str(path)!r}).read())"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30
        )
        assert "PermissionError" in done.stderr
        assert done.stdout == ""
    canaries.hostile.wait_gone()
    assert left_in(canaries.runtime) == []


@pytest.mark.claim("secrets")
def test_no_secret_file_is_left_when_the_server_ends_by_itself(canaries: Canaries) -> None:
    async def use() -> None:
        async with open_sandbox(canaries.hostile.config) as sandbox:
            assert secret_files(canaries) != []
            async with connect_over(sandbox) as client:
                with pytest.raises(Exception, match="exit code 5"):
                    await client.call_tool("die", {"code": 5})
            raise await sandbox.exited_error()

    with in_environment(canaries), pytest.raises(ServerExitedError):
        anyio.run(use)
    assert left_in(canaries.runtime) == []


@pytest.mark.claim("secrets")
def test_another_sandbox_sees_nothing_of_it(
    canaries: Canaries, running: Wire, inside: Wire
) -> None:
    assert running.call("say", text="up") == "said"
    assert inside.probe("insight.list_folder", "/run/secrets")[0].startswith("!")
    routes = inside.probe("insight.environment_by_every_route")
    lines = inside.probe("insight.command_lines")
    assert canaries.leaked_in(json.dumps([routes, lines])) == []


REFUSING = """
import json, os, sys
request = json.loads(sys.stdin.readline())
error = {"code": -1, "message": "Invalid API key: " + os.environ["TOKEN"]}
print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}), flush=True)
sys.stdin.read()
"""


@pytest.mark.claim("secrets")
@pytest.mark.parametrize("words", [["tools"], ["call", "x"]])
def test_error_answer_that_quotes_a_value_is_redacted(words: list[str]) -> None:
    cli = str(Path(sys.executable).with_name("sandboxed-mcp"))
    options = ["--image", "sandboxed-mcp/python", "--secret", "TOKEN"]
    command = [cli, words[0], *options, *words[1:], "--", "python3", "-c", REFUSING]
    env = {**os.environ, "TOKEN": "AbCdEf0123456789"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "Invalid API key: [secret TOKEN]" in done.stderr
    assert "AbCdEf0123456789" not in done.stdout + done.stderr
