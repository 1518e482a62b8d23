"""`tools` and `call` on the real engine, with good servers and with bad ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.hostile.arena import containers_named, docker
from tests.hostile.wire import wait_until
from tests.integration.cli_shell import COMMAND, new_name, raw_server, sandboxed, write_config

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("engine")
NOTES = ("--image", "sandboxed-mcp/notes")
TOOL: dict[str, Any] = {"name": "t", "inputSchema": {"type": "object"}}


def listing(*tools: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"result": {"tools": list(tools), **more}}


def test_tools_are_listed_with_their_parameters() -> None:
    done = sandboxed("tools", *NOTES)
    assert done.returncode == 0, done.stderr
    assert "search_notes(query: string)\n    Find notes" in done.stdout


def test_json_is_what_the_server_said() -> None:
    done = sandboxed("tools", *NOTES, "--json")
    assert {tool["name"] for tool in json.loads(done.stdout)} == {"search_notes", "note_stats"}
    assert done.stdout.isascii()


def test_a_tool_is_called_by_name_and_by_file(tmp_path: Path) -> None:
    config = write_config(tmp_path, "notes", image="sandboxed-mcp/notes")
    done = sandboxed("call", "notes", "note_stats", "--config", str(config))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["notes"] == 5


def test_arguments_may_come_from_stdin() -> None:
    done = sandboxed("call", *NOTES, "search_notes", "-", "--json", stdin='{"query": "Zo\u00eb"}')
    assert done.returncode == 0, done.stderr
    assert "Zo\u00eb" in json.loads(done.stdout)["content"][0]["text"]


def test_a_tool_error_exits_with_1_and_shows_the_servers_text() -> None:
    done = sandboxed("call", *NOTES, "search_notes", "{}")
    assert done.returncode == 1
    assert "reports an error" in done.stderr
    assert "Field required" in done.stdout
    as_json = sandboxed("call", *NOTES, "search_notes", "{}", "--json")
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["isError"] is True


def test_a_tool_that_is_not_listed_is_told_with_the_nearest() -> None:
    done = sandboxed("call", *NOTES, "search_note", "{}")
    assert done.returncode == 1
    assert "did you mean 'search_notes'?" in done.stderr


def test_a_dry_run_prints_the_plan_and_starts_nothing(tmp_path: Path) -> None:
    name = new_name()
    config = write_config(tmp_path, name, image="sandboxed-mcp/notes", secrets=["TOKEN"])
    for words in (("tools", name), ("call", name, "t", "{}")):
        done = sandboxed(*words, "--dry-run", "--config", str(config), env={"TOKEN": "v3ry-secret"})
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["network"] == "none"
        assert "v3ry-secret" not in done.stdout + done.stderr
    assert not containers_named(name)


def test_an_image_that_is_not_there_is_named_with_what_to_run() -> None:
    done = sandboxed("tools", "--image", "sandboxed-mcp/nope")
    assert done.returncode == 125
    assert "run 'sandboxed-mcp build nope' once" in done.stderr


def test_what_a_server_writes_cannot_control_the_terminal() -> None:
    nasty = "\x1b]0;x\x07\x1b[2J\u202e\u200b[bold]"
    schema: dict[str, Any] = {"type": "object", "properties": {nasty: {}}}
    tool = {"name": nasty, "description": nasty, "inputSchema": schema}
    block = {"type": "text", "text": nasty}
    answers = {
        "tools_list": listing(tool),
        "tools_call": {"result": {"content": [block], "isError": True}},
    }
    for words in (["tools"], ["call", "t"]):
        done = sandboxed(*words, *raw_server(**answers))
        assert "[bold]" in done.stdout
        assert all(char.isprintable() or char == "\n" for char in done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("answers", "words", "said"),
    [
        ({"tools_list": {"error": {"code": -3, "message": "no\x1b[2J"}}}, "tools", "error -3: no"),
        ({"tools_list": {"result": {"tools": 5}}}, "tools", "that MCP does not allow"),
        ({"tools_list": {"result": {}}}, "tools", "that MCP does not allow"),
        ({"tools_list": listing(TOOL, nextCursor="x")}, "tools", "does not end"),
        ({"tools_call": {"result": {"content": "x"}}}, "call t", "that MCP does not allow"),
        ({"tools_call": {"error": {"code": 1, "message": "m"}}}, "call t", "error 1: m"),
        ({"tools_call": "silence"}, "call t --timeout 2", "did not answer"),
    ],
)
def test_a_bad_answer_is_one_message_and_exit_code_1(
    answers: dict[str, Any], words: str, said: str
) -> None:
    done = sandboxed(*words.split(), *raw_server(**answers))
    assert done.returncode == 1, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("words", ["tools", "call t"])
def test_a_server_that_ends_during_a_call_is_told_with_its_last_words(words: str) -> None:
    done = sandboxed(*words.split(), *raw_server(tools_list="exit", tools_call="exit"))
    assert done.returncode == 125
    assert "ended (exit code 7); its last words on stderr:\nlast words" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_result_that_breaks_its_own_schema_is_refused() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    content: dict[str, Any] = {"content": [], "structuredContent": {"n": "x"}}
    answers: dict[str, Any] = {
        "tools_list": listing({**TOOL, "outputSchema": schema}),
        "tools_call": {"result": content},
    }
    done = sandboxed("call", "t", *raw_server(**answers))
    assert done.returncode == 1
    assert "the result of 't' was refused" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (("sh", "-c", "echo last words >&2; exit 3"), "ended (exit code 3)"),
        (("true",), "ended (exit code 0)"),
        (("/nonexistent",), "nonexistent"),
    ],
)
def test_a_server_that_does_not_start_is_told_with_its_words(
    program: tuple[str, ...], said: str
) -> None:
    done = sandboxed("tools", "--image", "sandboxed-mcp/python", "--", *program)
    assert done.returncode == 125
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_never_answers_ends_at_the_start_timeout(tmp_path: Path) -> None:
    policy = tmp_path / "quick.toml"
    policy.write_text("[limits]\nstart_timeout = 2\n")
    image = ("--image", "sandboxed-mcp/python", "--policy", str(policy))
    done = sandboxed("tools", *image, "--", "sleep", "100")
    assert done.returncode in {1, 125}
    assert "limits.start_timeout = 2 s" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_a_call_and_its_container(tmp_path: Path) -> None:
    name = new_name()
    config = write_config(tmp_path, name, command="python3", args=["-c", "input(); input()"])
    with subprocess.Popen(
        [*COMMAND, "call", name, "t", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    ) as process:
        wait_until(lambda: _running(name), 20, lambda: "no container came up")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in said
    wait_until(lambda: not containers_named(name), 15, lambda: "the container is still there")


def _running(name: str) -> bool:
    label = f"label=sandboxed-mcp.server={name}"
    return bool(docker("ps", "-q", "--filter", label, "--filter", "status=running"))
