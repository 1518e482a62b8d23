"""The JSON files of MCP clients."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.config.loading import load_server, load_servers
from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from sandboxed_mcp.config.servers import ServerConfig


def write(folder: Path, document: object) -> Path:
    path = folder / "mcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def load(folder: Path, entry: object, root: str = "mcpServers") -> ServerConfig:
    return load_servers(write(folder, {root: {"notes": entry}}))["notes"]


def refusal(folder: Path, document: object) -> ConfigError:
    path = write(folder, document)
    with pytest.raises(ConfigError) as caught:
        load_servers(path)
    assert caught.value.file == str(path)
    return caught.value


@pytest.mark.parametrize("root", ["mcpServers", "servers"])
def test_an_entry_and_its_sandbox_table_make_a_server(tmp_path: Path, root: str) -> None:
    server = load(
        tmp_path,
        {
            "type": "stdio",
            "command": "python3",
            "args": ["-m", "notes"],
            "env": {"LANG": "C"},
            "sandbox": {
                "secrets": ["TOKEN"],
                "mounts": ["./notes:/notes"],
                "policy": {"user": "1:1"},
            },
        },
        root,
    )
    assert server.command == "python3"
    assert server.args == ("-m", "notes")
    assert dict(server.env) == {"LANG": "C"}
    assert [secret.name for secret in server.secrets] == ["TOKEN"]
    assert server.mounts[0].source == "./notes"
    assert server.policy == Policy(user="1:1")
    assert server.base_dir == tmp_path


def test_an_image_may_stand_in_the_place_of_a_command(tmp_path: Path) -> None:
    assert load(tmp_path, {"sandbox": {"image": "a"}}).image == "a"


def test_keys_that_only_the_client_acts_on_are_accepted(tmp_path: Path) -> None:
    extra: dict[str, object] = {
        "type": "stdio",
        "timeout": 60,
        "alwaysAllow": ["x"],
        "autoApprove": [],
        "disabledTools": [],
        "watchPaths": [],
        "description": "x",
        "trust": False,
        "includeTools": [],
        "excludeTools": [],
        "tools": ["*"],
        "alwaysLoad": True,
        "dev": {},
        "gallery": True,
        "version": "1",
        "disabled": True,
    }
    assert load(tmp_path, {"command": "node"} | extra).disabled


def test_other_tables_of_the_file_are_the_clients_own(tmp_path: Path) -> None:
    path = write(tmp_path, {"theme": "dark", "inputs": [], "servers": {"a": {"command": "node"}}})
    assert list(load_servers(path)) == ["a"]


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"mcpServers": {"a": {"command": "node"}}}')
    assert list(load_servers(path)) == ["a"]


def test_a_remote_neighbour_does_not_stop_a_local_server(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"mcpServers": {"far": {"url": "https://x.example"}, "near": {"command": "node"}}},
    )
    assert load_server(path, "near").command == "node"
    with pytest.raises(ConfigError, match="remote server"):
        load_server(path, "far")


ENTRIES: list[tuple[object, str, str, str]] = [
    ({"url": "https://x.example"}, ".url", "remote server", "leave it to the client"),
    ({"serverUrl": "https://x.example"}, ".serverUrl", "remote server", "leave it to the client"),
    ({"httpUrl": "https://x.example"}, ".httpUrl", "remote server", "leave it to the client"),
    ({"command": "node", "headers": {}}, ".headers", "remote server", "leave it to the client"),
    ({"type": "sse", "command": "node"}, ".type", "'sse' is not a local server", '"stdio"'),
    ({"type": 5, "command": "node"}, ".type", "5 is not a local server", '"stdio"'),
    ({"command": "node", "envFile": ".env"}, ".envFile", "'envFile' is unknown", "sandbox.secrets"),
    ({"command": "node", "comand": ""}, ".comand", "'comand' is unknown", "'command'?"),
    ({"command": "node", "alwaysAlow": []}, ".alwaysAlow", "unknown", "'alwaysAllow'?"),
    ({"command": "node", "a b": 1}, ".'a b'", "'a b' is unknown", "known are command"),
    ({"command": "node", "mounts": []}, ".mounts", "'mounts' is unknown", "sandbox table"),
    ({"command": "node", "image": "a"}, ".image", "'image' is unknown", "sandbox table"),
    (
        {"command": "node", "sandbox": {"env": {}}},
        ".sandbox.env",
        "'env' does not belong there",
        "beside sandbox",
    ),
    (
        {"command": "node", "sandbox": {"mount": []}},
        ".sandbox.mount",
        "'mount' is unknown",
        "did you mean 'mounts'?",
    ),
    (
        {"command": "node", "sandbox": {"policy": {"limits": {"pids": 0}}}},
        ".sandbox.policy.limits.pids",
        "0 is out of bounds",
        "from 4 to 65536",
    ),
    (
        {"command": "node", "sandbox": {"mounts": ["/a:/proc"]}},
        ".sandbox.mounts[0].target",
        "'/proc' is at or below /proc",
        "such as /data",
    ),
    ({"command": "node", "sandbox": []}, ".sandbox", "a list", "write {...}"),
    ({}, ".sandbox.image", "neither image nor command is set", "add image"),
    ({"command": "npx", "args": ["-y", "x"]}, ".command", "'npx' installs packages", "build an"),
    ({"command": "${node}"}, ".command", "placeholder '${node}'", "sandbox.secrets"),
    (
        {"command": "node", "args": ["--token=${TOKEN}"]},
        ".args[0]",
        "the placeholder '${TOKEN}' is not expanded here",
        "sandbox.secrets",
    ),
    (
        {"command": "node", "args": ["${workspaceFolder}/x.js"]},
        ".args[0]",
        "the placeholder '${workspaceFolder}'",
        "write the value out",
    ),
    (
        {"command": "node", "env": {"TOKEN": "${input:token}"}},
        ".env.TOKEN",
        "the placeholder '${input:token}'",
        "sandbox.secrets",
    ),
    (
        {"command": "node", "env": {"TOKEN": "<UNKNOWN>"}},
        ".env.TOKEN",
        "the placeholder '<UNKNOWN>'",
        "sandbox.secrets",
    ),
    ({"command": "node", "args": ["<path>"]}, ".args[0]", "placeholder '<path>'", "write the"),
    ({"command": "node", "env": {"A": 1}}, ".env.A", "the value is not text", "in quotes"),
    ({"command": "node", "cwd": "."}, ".cwd", "'.' is not an absolute path", "such as /data"),
    ({"command": "node", "disabled": 1}, ".disabled", "1 is refused", "true or false"),
    ("node", "", "it is 'node'", '"command"'),
    (None, "", "it is nothing", '"command"'),
]


@pytest.mark.parametrize(("entry", "setting", "problem", "fix"), ENTRIES)
def test_a_refused_entry_names_file_setting_and_fix(
    tmp_path: Path, entry: object, setting: str, problem: str, fix: str
) -> None:
    error = refusal(tmp_path, {"mcpServers": {"notes": entry}})
    assert error.setting == f"mcpServers.notes{setting}"
    assert problem in error.problem
    assert fix in error.fix


@pytest.mark.parametrize(
    ("document", "setting", "problem", "fix"),
    [
        ({}, "(the file)", "it has neither of the two tables", '{"mcpServers"'),
        ({"mcpServer": {}}, "(the file)", "it has neither of the two tables", '{"mcpServers"'),
        ({"mcpServers": {}, "servers": {}}, "(the file)", "it has both", "keep one"),
        ({"mcpServers": []}, "mcpServers", "it is not an object", "write {...}"),
        ([], "(the file)", "it is not a JSON object", '{"mcpServers"'),
        ("", "(the file)", "it is not JSON", "comments"),
        ('{"mcpServers": {}, // x\n}', "(the file)", "it is not JSON", "comments"),
        ('{"a": 1, "a": 2}', "(the file)", "the key 'a' stands twice", "keep one"),
        (
            '{"mcpServers": {"a": {"command": "x", "command": "y"}}}',
            "(the file)",
            "the key 'command' stands twice",
            "keep one",
        ),
        ('{"a": NaN}', "(the file)", "NaN is not a JSON number", "write a number"),
        ('{"a": ' + "1" * 5000 + "}", "(the file)", "it is not JSON", "correct it"),
        ("[" * 100_000, "(the file)", "nested too deeply", "remove the nesting"),
        ({"mcpServers": {"a b": {}}}, "mcpServers", "'a b' is not a server name", "at most 63"),
        ({"mcpServers": {"": {}}}, "mcpServers", "'' is not a server name", "at most 63"),
    ],
)
def test_a_refused_file_says_why(
    tmp_path: Path, document: object, setting: str, problem: str, fix: str
) -> None:
    error = refusal(tmp_path, document)
    assert error.setting == setting
    assert problem in error.problem
    assert fix in error.fix


def test_no_error_shows_the_value_beside_a_placeholder(tmp_path: Path) -> None:
    error = refusal(
        tmp_path, {"mcpServers": {"a": {"command": "node", "env": {"A": "hunter2${B}"}}}}
    )
    assert "hunter2" not in str(error)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["command", "args", "env", "cwd", "sandbox", "type", "disabled"])


@given(
    st.dictionaries(KEYS | st.text(max_size=3), JUNK, max_size=4)
    | st.dictionaries(KEYS, JUNK).map(lambda entry: {"command": "node"} | entry)
    | JUNK
)
def test_junk_is_an_entry_or_a_config_error(entry: object) -> None:
    with TemporaryDirectory() as folder, suppress(ConfigError):
        load(Path(folder), entry)
