"""`ps`, `stop`, `gc` and `logs` beside real sandboxes; those of others are never touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hostile.arena import containers_named, docker
from tests.hostile.wire import wait_until
from tests.integration.cli_shell import COMMAND, new_name, open_run, sandboxed, write_config

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.usefixtures("engine")
IMAGE = "sandboxed-mcp/python:latest"
OTHER_MACHINE = "elsewhere:0/boot/1/1/1"
TALKER = """
import os, sys, threading
number, pause = 0, threading.Event()
while True:
    file = open("/run/secrets/IN_FILE").read() if os.path.exists("/run/secrets/IN_FILE") else ""
    print("line", number, os.environ.get("TOKEN"), file, "\\x1b[2J", file=sys.stderr, flush=True)
    number += 1
    pause.wait(0.1)
"""
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def listed(name: str) -> list[dict[str, Any]]:
    done = sandboxed("ps", "--json")
    assert done.returncode == 0, done.stderr
    return [one for one in json.loads(done.stdout) if one["server"] == name]


@contextmanager
def running(folder: Path, program: str, **settings: Any) -> Generator[dict[str, Any]]:
    """A sandbox that is up: its line of `ps --json`."""
    name = new_name()
    config = write_config(folder, name, command="python3", args=["-c", program], **settings)
    env = {"TOKEN": "t0ken-value", "IN_FILE": "f1le-value"}
    with open_run(config, name, env=env) as process:
        wait_until(lambda: _is_up(name), 20, lambda: f"{name} is not up: {process.poll()}")
        yield {**listed(name)[0], "process": process}
    wait_until(lambda: not containers_named(name), 15, "the container is gone")


def _is_up(name: str) -> bool:
    label = f"label=sandboxed-mcp.server={name}"
    return bool(docker("ps", "-q", "--filter", label, "--filter", "status=running"))


@contextmanager
def labelled(owner: str) -> Generator[str]:
    """A container with our labels that this test made by itself; gives its id."""
    labels = {"launch": os.urandom(16).hex(), "server": new_name(), "owner": owner}
    options = [f"--label=sandboxed-mcp.{key}={value}" for key, value in labels.items()]
    container = docker("run", "-d", "--network=none", *options, IMAGE, "sleep", "300")
    try:
        yield container
    finally:
        subprocess.run(["docker", "rm", "-f", container], capture_output=True, check=False)


def exists(container: str) -> bool:
    return container in docker("ps", "-aq", "--no-trunc").split()


def dead_owner() -> str:
    program = "from sandboxed_mcp.engine.owner import describe_owner; print(describe_owner())"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_ps_tells_what_runs(tmp_path: Path) -> None:
    with running(tmp_path, ECHO) as one:
        assert one["state"] == "running"
        assert one["owner_state"] == "alive"
        assert one["network"] == "none"
        assert one["image"] == IMAGE
        assert one["uptime_seconds"] >= 0
        (line,) = [row for row in sandboxed("ps").stdout.splitlines() if one["server"] in row]
        assert one["launch"][:8] in line
        assert one["container"][:12] in line


def test_stop_by_name_and_by_launch(tmp_path: Path) -> None:
    for key in ("server", "launch"):
        with running(tmp_path, ECHO) as one:
            done = sandboxed("stop", one[key])
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"stopped {one['server']} {one['launch']}\n"
            assert not containers_named(one["server"])
            assert one["process"].wait(timeout=15) == 143


def test_stop_removes_a_server_that_ignores_sigterm(tmp_path: Path) -> None:
    stubborn = (
        "import signal, threading; signal.signal(15, signal.SIG_IGN); threading.Event().wait()"
    )
    with running(tmp_path, stubborn) as one:
        done = sandboxed("stop", one["launch"][:12])
        assert done.returncode == 0, done.stderr
        assert not exists(one["container"])


def test_a_name_of_several_is_stopped_whole_and_refused_by_logs(tmp_path: Path) -> None:
    with running(tmp_path, ECHO) as one:
        config = tmp_path / "sandboxed-mcp.toml"
        with open_run(config, one["server"]):
            wait_until(lambda: len(listed(one["server"])) == 2, 20, "the second is up")
            refused = sandboxed("logs", one["server"])
            assert refused.returncode == 2
            assert "2 sandboxes run under it" in refused.stderr
            done = sandboxed("stop", one["server"])
            assert done.stdout.count("stopped") == 2
            assert not listed(one["server"])


@pytest.mark.parametrize("word", ["", "abc", "no-such-server", "%", "ffffffffffffffff"])
def test_a_word_that_stands_for_nothing_is_refused(word: str) -> None:
    for command in ("stop", "logs"):
        done = sandboxed(command, word)
        assert done.returncode == 2
        assert "no sandbox of that name" in done.stderr


def test_stop_leaves_other_machines_alone_unless_told() -> None:
    with labelled(OTHER_MACHINE) as container:
        launch = docker(
            "inspect", "-f", '{{index .Config.Labels "sandboxed-mcp.launch"}}', container
        )
        done = sandboxed("stop", launch)
        assert done.returncode == 1
        assert "--foreign" in done.stderr
        assert exists(container)
        assert sandboxed("stop", launch, "--foreign").returncode == 0
        assert not exists(container)


def test_a_container_without_our_labels_is_never_touched() -> None:
    container = docker("run", "-d", "--network=none", IMAGE, "sleep", "300")
    try:
        for command in ("stop", "logs"):
            assert sandboxed(command, container[:12]).returncode == 2
        sandboxed("gc")
        assert exists(container)
    finally:
        docker("rm", "-f", container)


def test_gc_removes_what_dead_launchers_left_and_nothing_else() -> None:
    with labelled(dead_owner()) as orphan, labelled(OTHER_MACHINE) as foreign:
        folder = _secret_folder(dead_owner())
        done = sandboxed("gc")
        assert done.returncode == 0, done.stderr
        assert not exists(orphan)
        assert exists(foreign)
        assert not folder.exists()


def test_a_dry_run_of_gc_removes_nothing() -> None:
    folder = _secret_folder(dead_owner())
    done = sandboxed("gc", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    # Another launch on this machine may have removed it in the meantime, and rightly so.
    assert not folder.exists() or str(folder) in [one["place"] for one in json.loads(done.stdout)]


def _secret_folder(owner: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sandboxed-mcp-", dir="/dev/shm"))
    (folder / "files").mkdir()
    (folder / "files" / "TOKEN").write_text("value")
    (folder / "owner").write_text(owner)
    return folder


def test_every_launch_removes_what_dead_launchers_left() -> None:
    with labelled(dead_owner()) as orphan:
        folder = _secret_folder(dead_owner())
        assert sandboxed("tools", "--image", "sandboxed-mcp/notes").returncode == 0
        assert not exists(orphan)
        assert not folder.exists()


def test_a_launch_says_whose_its_secret_files_are(tmp_path: Path) -> None:
    name = new_name()
    config = tmp_path / "sandboxed-mcp.toml"
    program = json.dumps(["-c", ECHO])
    config.write_text(
        f"[servers.{name}]\ncommand = 'python3'\nargs = {program}\n"
        "secrets = [{ name = 'IN_FILE', as = 'file' }]\n"
    )
    with open_run(config, name, env={"IN_FILE": "f1le-value"}) as process:
        wait_until(lambda: _is_up(name), 20, "the server is up")
        source = docker("inspect", "-f", "{{(index .Mounts 0).Source}}", containers_named(name)[0])
        folder = Path(source).parent
        assert f"/{process.pid}/" in (folder / "owner").read_text()
        assert sorted(path.name for path in Path(source).iterdir()) == ["IN_FILE"]
        assert sandboxed("gc").returncode == 0
        assert (folder / "files" / "IN_FILE").exists()
    assert not folder.exists()


def test_logs_show_new_lines_without_secrets_and_escaped(tmp_path: Path) -> None:
    config = tmp_path / "sandboxed-mcp.toml"
    name = new_name()
    config.write_text(
        f"[servers.{name}]\ncommand = 'python3'\nargs = {json.dumps(['-c', TALKER])}\n"
        "secrets = ['TOKEN', { name = 'IN_FILE', as = 'file' }]\n"
    )
    env = {"TOKEN": "t0ken-value", "IN_FILE": "f1le-value"}
    with open_run(config, name, env=env) as process:
        wait_until(lambda: _is_up(name), 20, "the server is up")
        with subprocess.Popen([*COMMAND, "logs", name], stdout=subprocess.PIPE, text=True) as logs:
            assert logs.stdout is not None
            lines = [logs.stdout.readline() for _ in range(5)]
            process.send_signal(signal.SIGTERM)
            rest, _ = logs.communicate(timeout=20)
        assert logs.returncode == 0
    text = "".join(lines) + rest
    assert "[secret TOKEN] [secret IN_FILE] \\x1b[2J\n" in text
    assert "t0ken" not in text
    assert "f1le" not in text
    assert "\x1b" not in text


def test_ctrl_c_ends_logs_and_not_the_server(tmp_path: Path) -> None:
    with running(tmp_path, TALKER) as one:
        command = [*COMMAND, "logs", one["server"]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as logs:
            assert logs.stdout is not None
            logs.stdout.readline()
            logs.send_signal(signal.SIGINT)
            _, said = logs.communicate(timeout=20)
        assert logs.returncode == 130
        assert said == b""
        assert _is_up(one["server"])


def test_logs_end_when_nobody_reads_them_any_more(tmp_path: Path) -> None:
    with running(tmp_path, TALKER) as one:
        with subprocess.Popen([*COMMAND, "logs", one["server"]], stdout=subprocess.PIPE) as logs:
            assert logs.stdout is not None
            logs.stdout.readline()
            logs.stdout.close()
            assert logs.wait(timeout=20) == 0
        assert _is_up(one["server"])


def test_a_reader_of_logs_that_stands_still_never_stalls_the_server(tmp_path: Path) -> None:
    flood = (
        "import sys\nfor line in sys.stdin:\n"
        "    for _ in range(200): print('x' * 65536, file=sys.stderr)\n"
        '    print(\'{"jsonrpc": "2.0", "id": 1, "result": {}}\', flush=True)'
    )
    with running(tmp_path, flood) as one:
        process = one["process"]
        with subprocess.Popen([*COMMAND, "logs", one["server"]], stdout=subprocess.PIPE) as logs:
            wait_until(lambda: _attached(logs.pid), 10, "logs is attached")
            process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            process.stdin.flush()
            assert '"result"' in process.stdout.readline()
            logs.kill()


def _attached(pid: int) -> bool:
    sockets = [path for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_socket()]
    return len(sockets) > 2
