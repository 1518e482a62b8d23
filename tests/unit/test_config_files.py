"""Configuration files: finding, reading, and the schema."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sandboxed_mcp.cli.schema import schema as schema_command
from sandboxed_mcp.config.files import read_document
from sandboxed_mcp.config.loading import find_config, load_server, load_servers
from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.schema import json_schema
from sandboxed_mcp.errors import ConfigError

EXAMPLE = """
[servers.notes]
image = "sandboxed-mcp/notes"
secrets = ["TOKEN", { name = "KEY", file = "~/key", as = "file" }]
mounts = ["./notes:/notes:rw", { source = "/a", target = "/b", mode = "ro" }]
env = { LANG = "C.UTF-8" }
policy.egress = ["a.example", { host = "b.example", ports = 1, allow_private = true }]
policy.limits = { memory = "1GiB" }

[servers.time]
command = "python3"
args = ["-m", "mcp_server_time"]
cwd = "/srv"
"""


def write(folder: Path, text: str, name: str = "sandboxed-mcp.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str, name: str = "sandboxed-mcp.toml") -> ConfigError:
    path = write(folder, text, name)
    with pytest.raises(ConfigError) as caught:
        load_servers(path)
    assert caught.value.file == str(path)
    return caught.value


def test_every_server_of_a_file_is_loaded_with_where_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path, EXAMPLE)
    servers = load_servers(path)
    assert list(servers) == ["notes", "time"]
    notes = servers["notes"]
    assert notes.name == "notes"
    assert notes.origin == str(path)
    assert notes.base_dir == tmp_path
    assert isinstance(notes.policy, Policy)
    assert notes.policy.limits.memory == 1 << 30
    assert load_server(path, "time") == servers["time"]


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "sandboxed-mcp.toml"
    path.write_bytes(b"\xef\xbb\xbf" + EXAMPLE.encode())
    assert list(load_servers(path)) == ["notes", "time"]


@pytest.mark.parametrize(
    ("text", "setting", "problem", "fix"),
    [
        ("", "servers", "the file has no server", "[servers.NAME]"),
        ("servers = 5", "servers", "the file has no server", "[servers.NAME]"),
        ("[server.x]", "server", "the key 'server' is unknown", "[servers.NAME] tables alone"),
        ("[servers.x]\nimage = 5", "servers.x.image", "5 is refused", "text in quotes"),
        ("[servers.x]\nimgae = 'a'", "servers.x.imgae", "unknown", "did you mean 'image'?"),
        ("[servers.x]\nimage = 'a'\nname = 'y'", "servers.x.name", "unknown", "known are image"),
        ("[servers.x]\nimage = 'a'\nbase_dir = '/'", "servers.x.base_dir", "unknown", "known are"),
        ("[servers.x]\nimage = 'a'\nsection = {}", "servers.x.section", "unknown", "known are"),
        ("[servers]\nx = 5", "servers.x", "5 is refused", "write a table"),
        ("[servers.'a b']", "servers", "'a b' is not a server name", "at most 63"),
        ("x =", "(the file)", "it is not TOML", "correct it"),
        ("x = 1\nx = 2", "(the file)", "it is not TOML", "correct it"),
        ("x = " + "1" * 5000, "(the file)", "it is not TOML", "correct it"),
        ("x = " + "[" * 5000, "(the file)", "nested too deeply", "remove the nesting"),
        ("[servers.x]\nimage = 1979-05-27", "servers.x.image", "of type date", "text in quotes"),
        (
            "[servers.x]\nimage='a'\npolicy.limits.memory = '1'",
            "servers.x.policy.limits.memory",
            "'1' is not a size",
            "512MiB",
        ),
    ],
)
def test_a_refused_setting_names_file_setting_and_fix(
    tmp_path: Path, text: str, setting: str, problem: str, fix: str
) -> None:
    error = refusal(tmp_path, text)
    assert error.setting == setting
    assert problem in error.problem
    assert fix in error.fix


def test_the_problems_of_all_servers_are_shown(tmp_path: Path) -> None:
    error = refusal(tmp_path, "[servers.a]\nx = 1\n[servers.b]\ncommand = 'npx'")
    assert len(str(error).splitlines()) == 2
    assert "servers.a.x" in str(error)
    assert "servers.b.command" in str(error)


def test_one_bad_server_of_our_own_file_stops_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, EXAMPLE + "[servers.bad]\nx = 1\n")
    with pytest.raises(ConfigError, match=r"servers\.bad\.x"):
        load_server(path, "time")


def test_an_unknown_server_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, EXAMPLE)
    with pytest.raises(ConfigError, match="there is no server 'note'; did you mean 'notes'"):
        load_server(path, "note")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path, problem in (
        (tmp_path / "nope.toml", "No such file or directory"),
        (tmp_path / "x.yaml", "the name ends in '.yaml'"),
    ):
        with pytest.raises(ConfigError, match=problem) as caught:
            load_servers(path)
        assert caught.value.file == str(path)


def test_a_folder_a_pipe_and_a_huge_file_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    write(tmp_path, "#" * (1 << 21), "huge.toml")
    for name, problem in (
        ("folder.toml", "it is not a regular file|it cannot be read"),
        ("pipe.toml", "it is not a regular file"),
        ("huge.toml", "it is larger than"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load_servers(tmp_path / name)


def test_what_is_not_utf8_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"ab\xff")
    with pytest.raises(ConfigError, match="byte 2 is not UTF-8"):
        load_servers(path)


def test_the_current_folder_comes_before_the_users_configuration(tmp_path: Path) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    here.mkdir()
    (home / ".config" / "sandboxed-mcp").mkdir(parents=True)
    (tmp_path / "xdg" / "sandboxed-mcp").mkdir(parents=True)
    environ = {"HOME": str(home), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    with pytest.raises(ConfigError) as caught:
        find_config(here, environ)
    assert str(here / "sandboxed-mcp.toml") in caught.value.problem
    assert str(tmp_path / "xdg/sandboxed-mcp/sandboxed-mcp.toml") in caught.value.problem
    of_user = write(home / ".config" / "sandboxed-mcp", "")
    assert find_config(here, {"HOME": str(home)}) == of_user
    of_xdg = write(tmp_path / "xdg" / "sandboxed-mcp", "")
    assert find_config(here, environ) == of_xdg
    assert find_config(write(here, "").parent, environ) == here / "sandboxed-mcp.toml"


TEXT = st.text() | st.text('[]{}=".\n\\#servax1,', max_size=60)


@given(TEXT, st.sampled_from(["a.toml", "a.json"]))
def test_any_text_is_a_document_or_a_config_error(text: str, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(text.encode(errors="surrogatepass"))
        with suppress(ConfigError):
            assert isinstance(read_document(path), dict)
        with suppress(ConfigError):
            load_servers(path)


def accepts(document: Any) -> bool:
    validator: Any = Draft202012Validator(json_schema())
    return validator.is_valid(document)


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(json_schema())  # pyright: ignore[reportUnknownMemberType]


def test_the_schema_accepts_what_is_loaded_and_refuses_a_typo(tmp_path: Path) -> None:
    document = read_document(write(tmp_path, EXAMPLE))
    assert accepts(document)
    refused: list[dict[str, object]] = [
        {},
        {"server": {}},
        {"servers": {"x": {"imgae": "a"}}},
        {"servers": {"x y": {"image": "a"}}},
        {"servers": {"x": {"image": "a", "policy": {"egress": "all"}}}},
        {"servers": {"x": {"image": "a", "policy": {"limits": {"memory": "1GB"}}}}},
        {"servers": {"x": {"image": "a", "mounts": [{"source": "/a"}]}}},
        {"servers": {"x": {"image": "a", "env": {"A": 1}}}},
    ]
    for bad in refused:
        assert not accepts(bad)


def test_the_schema_command_prints_the_schema() -> None:
    result = CliRunner().invoke(schema_command)
    assert result.exit_code == 0
    assert json.loads(result.output) == json_schema()
