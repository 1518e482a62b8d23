"""What the commands say of arguments they cannot use: one sentence, and nothing is started."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli_shell import sandboxed, write_config

if TYPE_CHECKING:
    from pathlib import Path

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nonsense", "No such command"),
        ("tools", "name a server"),
        ("tools a b", "one word too many"),
        ("tools a --image i x", "one word too many"),
        ("tools a -- b", "goes with --image"),
        ("tools a --mount /a:/b", "--mount goes with --image"),
        ("tools a --env A=1", "--env goes with --image"),
        ("tools a --secret A", "--secret goes with --image"),
        ("tools a --policy offline", "--policy goes with --image"),
        ("tools --image i --config c.toml", "--config names a file"),
        ("tools --image i --env A", "--env has no value"),
        ("tools --image i --env A=1 --env A=2", "--env A is given twice"),
        ("tools --image i --env 1A=1", "1A"),
        ("tools --image i --mount /nowhere:/data", "/nowhere"),
        ("tools --image i --mount /:/data", "'/'"),
        ("tools --image i --mount x", "names no target"),
        ("tools --image i --secret NOT_SET_ANYWHERE", "'NOT_SET_ANYWHERE' is not set"),
        ("tools --image i --policy nope", "there is no policy 'nope'"),
        ("tools --image i;rm", "is not an image reference"),
        ("tools --config /nonexistent.toml a", "/nonexistent.toml"),
        ("tools a --nonsense", "No such option"),
        ("call", "name a server"),
        ("call --image i", "name one tool"),
        ("call --image i t {} x", "name one tool"),
        ("call --image i t {", "line 1, column 2"),
        ("call --image i t []", "a list, not an object"),
        ("call --image i t {} --timeout 0", "--timeout"),
        ("call --image i t {} --timeout soon", "--timeout"),
        ("run", "name one server"),
        ("run a b", "name one server"),
        ("run a -- b", "goes with --image"),
        ("stop", "or write --all"),
        ("stop a --all", "or write --all"),
        ("stop a b", "unexpected extra argument"),
        ("logs", "Missing argument"),
        ("ps x", "unexpected extra argument"),
        ("gc x", "unexpected extra argument"),
        ("doctor x", "unexpected extra argument"),
        ("build nope", "there is no image 'nope'"),
        ("build ../base", "there is no image '../base'"),
    ],
)
def test_wrong_arguments_are_refused_before_the_engine_is_asked(words: str, said: str) -> None:
    done = sandboxed(*words.split(), env=NO_ENGINE)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_arguments_that_are_not_utf8_are_refused() -> None:
    done = sandboxed("call", "--image", "i", "t", b'{"a": "\xff"}', env=NO_ENGINE)
    assert done.returncode == 2
    assert "not UTF-8" in done.stderr


@pytest.mark.parametrize("text", ["", "[]", "{} {}", '{"a": 1', "\ufeff{}"])
def test_arguments_from_stdin_are_held_to_the_same(text: str) -> None:
    done = sandboxed("call", "--image", "i", "t", "-", stdin=text, env=NO_ENGINE)
    assert done.returncode == (125 if text == "" else 2)
    assert "Traceback" not in done.stderr


def test_a_secret_given_as_a_variable_is_not_shown() -> None:
    done = sandboxed("tools", "--image", "i", "--env", "s3cr3t-without-name", env=NO_ENGINE)
    assert done.returncode == 2
    assert "s3cr3t" not in done.stderr


@pytest.mark.parametrize(
    "words",
    ["tools --image i", "call --image i t", "run --image i", "ps", "stop --all", "gc", "logs x"],
)
def test_a_missing_engine_is_told_with_what_was_tried(words: str) -> None:
    done = sandboxed(*words.split(), env=NO_ENGINE)
    assert done.returncode == 125
    assert "/nonexistent/docker.sock (DOCKER_HOST): No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_in_the_file_is_named(tmp_path: Path) -> None:
    config = write_config(tmp_path, "notes", image="sandboxed-mcp/notes")
    done = sandboxed("tools", "note", "--config", str(config), env=NO_ENGINE)
    assert done.returncode == 2
    assert "there is no server 'note'" in done.stderr
    assert "notes" in done.stderr


def test_the_configuration_of_the_current_folder_is_used(tmp_path: Path) -> None:
    write_config(tmp_path, "notes", image="sandboxed-mcp/notes", nonsense=1)
    done = sandboxed("tools", "notes", cwd=tmp_path, env=NO_ENGINE)
    assert done.returncode == 2
    assert "'nonsense' is unknown" in done.stderr


@pytest.mark.parametrize("command", ["tools", "call", "run", "ps", "stop", "gc", "logs", "doctor"])
def test_help_fits_a_terminal_and_needs_no_engine(command: str) -> None:
    done = sandboxed(command, "--help", env=NO_ENGINE)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_logs_says_that_nothing_is_kept() -> None:
    assert "not kept" in sandboxed("logs", "--help").stdout


def test_doctor_fails_without_an_engine() -> None:
    done = sandboxed("doctor", "--json", env=NO_ENGINE)
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)
    assert (finding["name"], finding["state"]) == ("engine", "fail")
    assert "/nonexistent/docker.sock" in finding["text"]
