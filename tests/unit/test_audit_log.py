"""The audit log: whom it trusts, how it turns over, and what it does when it cannot write."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from sandboxed_mcp.audit import log as audit_log
from sandboxed_mcp.audit.lines import parse_event_line, read_audit
from sandboxed_mcp.audit.log import BAD_LINES_A_SECOND, KEPT_FILES, open_audit_log
from sandboxed_mcp.audit.schema import audit_schema
from sandboxed_mcp.egress.events import EVENT_TYPES
from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.events import BadLine, Exited, NetworkEvent, render_event
from sandboxed_mcp.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

LAUNCH = "0" * 32


def exited(code: int = 0, reason: str | None = None) -> Exited:
    return Exited(
        time=1.0, server="notes", launch=LAUNCH, code=code, oom_killed=False, reason=reason
    )


def bad_line() -> BadLine:
    return BadLine(time=2.0, server="notes", launch=LAUNCH, head="x", reason="y", answered=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught, open_audit_log(path, "--audit"):
        pass
    assert caught.value.setting == "--audit"
    assert str(path) in caught.value.problem
    return str(caught.value)


def test_each_event_is_a_line_in_a_private_file(folder: Path) -> None:
    path = folder / "audit.jsonl"
    before = os.umask(0)
    try:
        with open_audit_log(path, "--audit") as log:
            log.write(exited(3, 'no "\n way\u2028'))
            lines = path.read_bytes().splitlines()
            assert [json.loads(line)["code"] for line in lines] == [3]
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().isascii()


def test_a_later_sandbox_appends(folder: Path) -> None:
    path = folder / "audit.jsonl"
    for code in (1, 2):
        with open_audit_log(path, "--audit") as log:
            log.write(exited(code))
    assert [event["code"] for event in read_audit(path)[0]] == [1, 2]


def test_a_line_that_a_crash_cut_off_spoils_no_other(folder: Path) -> None:
    path = folder / "audit.jsonl"
    path.touch(mode=0o600)
    path.write_bytes(render_event(exited(1)).encode() + b'\n{"event": "Exi')
    with open_audit_log(path, "--audit") as log:
        log.write(exited(2))
    events, bad = read_audit(path)
    assert ([event["code"] for event in events], bad) == ([1, 2], 1)


def make_link(path: Path) -> None:
    other = path.with_name("other")
    other.touch(mode=0o600)
    path.symlink_to(other)


def make_hard_link(path: Path) -> None:
    other = path.with_name("other")
    other.touch(mode=0o600)
    path.hardlink_to(other)


def make_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def make_folder(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def make_shared(path: Path) -> None:
    path.touch()
    path.chmod(0o620)


def make_readable(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


def make_foreign(path: Path) -> None:
    path.touch(mode=0o600)
    os.chown(path, 65532, 65532)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_link, "is a symbolic link"),
        (make_dangling_link, "is a symbolic link"),
        (make_hard_link, "hard link"),
        (make_folder, "not a regular file"),
        (make_pipe, "not a regular file"),
        (make_shared, "has mode 0620"),
        (make_readable, "run chmod 600 on it"),
        (make_foreign, "belongs to another user"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    folder: Path, make: Callable[[Path], None], why: str
) -> None:
    path = folder / "audit.jsonl"
    make(path)
    assert why in refused(path)
    assert not path.with_name("nothing").exists()


@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/status", "/sys/kernel/mm/x"])
def test_no_device_and_no_kernel_file_is_the_log(path: str) -> None:
    refused(Path(path))


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "others can write to" in refused(shared / "audit.jsonl")
    assert not list(shared.iterdir())
    shared.chmod(0o1777)  # as /tmp is: nobody can replace the file
    with open_audit_log(shared / "audit.jsonl", "--audit"):
        pass


def test_a_folder_of_another_user_or_none_is_refused(folder: Path) -> None:
    assert "create the folder" in refused(folder / "none" / "audit.jsonl")
    os.chown(folder, 65532, 65532)
    refused(folder / "audit.jsonl")


def test_a_second_writer_is_refused_by_name_until_the_first_is_done(folder: Path) -> None:
    path = folder / "audit.jsonl"
    with open_audit_log(path, "--audit"):
        assert "is in use" in refused(path)
    with open_audit_log(path, "--audit"):
        pass


def test_a_writer_that_is_killed_leaves_the_file_usable(folder: Path) -> None:
    path = folder / "audit.jsonl"
    program = (
        "import sys, time, pathlib\n"
        "from sandboxed_mcp.audit.log import open_audit_log\n"
        "from tests.unit.test_audit_log import exited\n"
        "with open_audit_log(pathlib.Path(sys.argv[1]), 'x') as log:\n"
        "    log.write(exited(7)); print('written', flush=True); sys.stdin.read()\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        assert "is in use" in refused(path)
        writer.send_signal(signal.SIGKILL)
    with open_audit_log(path, "--audit"):
        assert [event["code"] for event in read_audit(path)[0]] == [7]


def test_the_log_turns_over_by_size_and_stays_private(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 1000)
    path = folder / "audit.jsonl"
    with open_audit_log(path, "--audit") as log:
        for code in range(100):
            log.write(exited(code))
        assert "is in use" in refused(path)
    found = sorted(folder.iterdir())
    assert [one.name.removeprefix("audit.jsonl") for one in found] == ["", ".1", ".2", ".3", ".4"]
    assert len(found) == KEPT_FILES
    assert all(one.stat().st_size <= 1000 for one in found)
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in found)
    codes = [event["code"] for event in read_audit(path)[0]]
    assert codes == list(range(100 - len(codes), 100))
    assert len(codes) > 20


def test_a_link_planted_at_an_older_name_is_replaced_and_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_FILE_BYTES", 300)
    victim = folder / "victim"
    victim.write_text("mine")
    (folder / "audit.jsonl.1").symlink_to(victim)
    with open_audit_log(folder / "audit.jsonl", "--audit") as log:
        for code in range(10):
            log.write(exited(code))
        assert not log.failure
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("act", ["remove", "replace", "move"])
def test_a_file_that_goes_away_is_a_failure_told_once(folder: Path, act: str) -> None:
    path = folder / "audit.jsonl"
    with open_audit_log(path, "--audit") as log:
        log.write(exited(1))
        assert not log.failed.is_set()
        if act == "move":
            path.rename(path.with_name("elsewhere"))
        else:
            path.unlink()
        if act == "replace":
            path.touch(mode=0o600)
        log.write(exited(2))
        assert log.failed.is_set()
        assert "was removed or replaced" in log.failure
        log.write(exited(3))
    assert not path.exists() or path.stat().st_size == 0


@contextmanager
def file_size_limit(size: int) -> Generator[None]:
    """No file of this process grows beyond that: a write is cut short, then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_is_a_failure_and_leaves_no_half_line(folder: Path) -> None:
    path = folder / "audit.jsonl"
    with open_audit_log(path, "--audit") as log:
        log.write(exited(1))
        with file_size_limit(path.stat().st_size + 10):
            log.write(exited(2))
        assert "cannot be written" in log.failure
        assert str(path) in log.failure
    events, bad = read_audit(path)
    assert ([event["code"] for event in events], bad) == ([1], 0)


def test_a_flood_of_bad_lines_pushes_nothing_out(folder: Path) -> None:
    path = folder / "audit.jsonl"
    with open_audit_log(path, "--audit") as log:
        for _ in range(5000):
            log.write(bad_line())
        log.write(exited(1))
    events = read_audit(path)[0]
    told = [event for event in events if event["event"] == "BadLine"]
    counted = [event["count"] for event in events if event["event"] == "BadLinesSuppressed"]
    assert len(told) + sum(int(str(count)) for count in counted) == 5000
    assert len(told) <= 20 * BAD_LINES_A_SECOND
    assert [event["code"] for event in events if event["event"] == "Exited"] == [1]


def test_every_kind_of_event_matches_its_description() -> None:
    schema = audit_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for event in (exited(), exited(reason="x"), bad_line(), *map(network_event, EVENT_TYPES)):
        jsonschema.validate(json.loads(render_event(event)), schema)
    for kind in schema["$defs"].values():
        assert kind["description"]
        described = [one for one in kind["properties"].values() if "const" not in one]
        assert all(one["description"] for one in described)


def network_event(kind: str) -> NetworkEvent:
    samples: dict[str, Any] = {
        "str": "x",
        "int": 1,
        "float": 1.5,
        "bool": True,
        "tuple[str, ...]": ("a", "b"),
    }
    details = {one.name: samples[str(one.type)] for one in dataclasses.fields(EVENT_TYPES[kind])}
    return NetworkEvent(time=1.0, server="notes", launch=LAUNCH, kind=kind, details=details)


def test_what_is_no_event_is_none() -> None:
    for line in (b"", b"\n", b"[1]", b"{}", b'{"event": 1}', b"\xff", b"[" * 100_000):
        assert parse_event_line(line) is None


def test_reading_what_is_no_log_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_audit(path)


def test_no_event_holds_a_secret_not_even_in_a_host_name() -> None:
    recorder = Recorder("notes", LAUNCH, {"TOKEN": "Sesame-Open-42"})
    seen: list[str] = []
    recorder.sinks.append(lambda event: seen.append(render_event(event)))
    recorder.record(Exited, code=0, oom_killed=False, reason="it said Sesame-Open-42")
    details = {"name": "sesame-open-42.evil.example", "addresses": ("Sesame-Open-42",), "port": 1}
    recorder.record(NetworkEvent, kind="deny", details=details)
    queued = [render_event(event) for event in recorder.events.take_queued()]
    assert queued == seen
    assert all("sesame" not in line.lower() for line in seen)
    assert "[secret TOKEN].evil.example" in seen[1]
