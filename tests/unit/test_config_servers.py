"""Servers as written: what runs, and every setting that is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.config.mounts import Mount
from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.programs import NODE_IMAGE, PYTHON_IMAGE, Program
from sandboxed_mcp.config.servers import Secret, ServerConfig, ServerTable
from sandboxed_mcp.errors import ConfigError


def make_server(**settings: object) -> ServerConfig:
    return ServerConfig(**({"name": "notes"} | settings))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("settings", "program"),
    [
        ({"image": "a/b:1"}, Program("a/b:1", None, None)),
        ({"image": "a/b", "args": ["x"]}, Program("a/b", None, ("x",))),
        ({"image": "a/b", "args": []}, Program("a/b", None, ())),
        ({"image": "a/b", "command": "/bin/x"}, Program("a/b", ("/bin/x",), ())),
        ({"image": "a", "command": "npx", "args": ["s"]}, Program("a", ("npx",), ("s",))),
        ({"command": "python"}, Program(PYTHON_IMAGE, ("python",), ())),
        (
            {"command": "python3", "args": ["-m", "s"]},
            Program(PYTHON_IMAGE, ("python3",), ("-m", "s")),
        ),
        ({"command": "python3.12"}, Program(PYTHON_IMAGE, ("python3.12",), ())),
        ({"command": "/home/u/.venv/bin/python"}, Program(PYTHON_IMAGE, ("python",), ())),
        ({"command": "node", "args": ["x.js"]}, Program(NODE_IMAGE, ("node",), ("x.js",))),
        (
            {"image": "r.example:5000/a/b@sha256:" + "0" * 64},
            Program("r.example:5000/a/b@sha256:" + "0" * 64, None, None),
        ),
    ],
)
def test_image_command_and_args_mean_what_they_mean_in_docker(
    settings: dict[str, object], program: Program
) -> None:
    assert make_server(**settings).program == program


def test_short_texts_stand_for_tables() -> None:
    server = make_server(
        image="a",
        secrets=["TOKEN", {"name": "KEY", "file": "key.txt", "as": "file"}],
        mounts=[
            "data:/data",
            "/srv/x:/x:rw",
            {"source": "a:b", "target": "/c", "relabel": "shared"},
        ],
    )
    assert server.secrets == (
        Secret(name="TOKEN"),
        Secret.model_validate({"name": "KEY", "file": "key.txt", "as": "file"}),
    )
    assert server.mounts == (
        Mount(source="data", target="/data"),
        Mount(source="/srv/x", target="/x", mode="rw"),
        Mount(source="a:b", target="/c", relabel="shared"),
    )


def test_what_is_not_written_grants_nothing() -> None:
    server = make_server(image="a")
    assert dict(server.env) == {}
    assert server.secrets == ()
    assert server.mounts == ()
    assert server.policy == "offline"


def test_a_policy_may_stand_inline() -> None:
    assert make_server(image="a", policy={"user": "1:1"}).policy == Policy(user="1:1")
    assert make_server(image="a", policy=Policy(user="1:1")).policy == Policy(user="1:1")


def test_the_environment_cannot_be_changed_afterwards() -> None:
    given_env = {"A": "1"}
    server = make_server(image="a", env=given_env)
    given_env["B"] = "2"
    assert dict(server.env) == {"A": "1"}
    with pytest.raises(TypeError):
        server.env["C"] = "3"  # pyright: ignore[reportIndexIssue]


REFUSED: list[tuple[dict[str, object], str, str, str]] = [
    ({}, "image", "neither image nor command is set", "add image"),
    ({"args": ["x"]}, "image", "neither image nor command is set", "add image"),
    ({"command": "npx"}, "command", "'npx' installs packages", "build an image"),
    ({"command": "/usr/bin/uvx"}, "command", "'/usr/bin/uvx' installs packages", "build an image"),
    ({"command": "pipx"}, "command", "'pipx' installs packages", "build an image"),
    ({"command": "bunx"}, "command", "'bunx' installs packages", "build an image"),
    ({"command": "uv"}, "command", "'uv' installs packages", "build an image"),
    ({"command": "docker"}, "command", "'docker' starts a container of its own", "set image"),
    ({"command": "podman"}, "command", "'podman' starts a container", "set image"),
    ({"command": "sandboxed-mcp"}, "command", "'sandboxed-mcp' starts a container", "set image"),
    ({"command": "deno"}, "command", "'deno' is not in an image", "set image"),
    ({"command": "pythonista"}, "command", "'pythonista' is not in an image", "set image"),
    ({"command": "python3 s.py"}, "command", "'python3 s.py' is not one program", "args"),
    ({"command": ""}, "command", "'' is not one program", "args"),
    ({"command": "-x", "image": "a"}, "command", "'-x' is not a program", "name or its path"),
    ({"command": ["python"]}, "command", "a list is refused", "text in quotes"),
    ({"image": ""}, "image", "'' is not an image reference", "NAME:TAG"),
    ({"image": "-x"}, "image", "'-x' is not an image reference", "NAME:TAG"),
    ({"image": "a b"}, "image", "'a b' is not an image reference", "NAME:TAG"),
    ({"image": "a", "args": "x"}, "args", "is refused", "write a list"),
    ({"image": "a", "args": [1]}, "args[0]", "is refused", "text in quotes"),
    ({"image": "a", "args": ["x\0"]}, "args[0]", "NUL character", "a file in a mount"),
    ({"image": "a", "args": ["x" * (1 << 17)]}, "args[0]", "128 KiB", "a file in a mount"),
    ({"image": "a", "env": {"A B": "x"}}, "env", "'A B' is not the name", "letters, digits"),
    ({"image": "a", "env": {"1A": "x"}}, "env", "'1A' is not the name", "letters, digits"),
    ({"image": "a", "env": {"A": 8080}}, "env.A", "the value is not text", "in quotes"),
    ({"image": "a", "env": {"A": "x\0"}}, "env.A", "NUL character", "a file in a mount"),
    ({"image": "a", "env": {"A": "\ud800"}}, "env.A", "surrogate", "a file in a mount"),
    ({"image": "a", "env": {"A": "${TOKEN}"}}, "env.A", "placeholder '${TOKEN}'", "secrets"),
    ({"image": "a", "env": {"A": "<UNKNOWN>"}}, "env.A", "placeholder '<UNKNOWN>'", "secrets"),
    ({"image": "a", "env": ["A=x"]}, "env", "env is not a table", "env = {"),
    ({"image": "a", "secrets": ["A=x"]}, "secrets[0].name", "not the name", "name alone"),
    ({"image": "a", "secrets": "A"}, "secrets", "is refused", "write a list"),
    ({"image": "a", "secrets": ["A", "A"]}, "secrets[1]", "'A' is listed twice", "keep one"),
    (
        {"image": "a", "secrets": ["A"], "env": {"A": ""}},
        "secrets[0]",
        "in env as well",
        "keep one",
    ),
    (
        {"image": "a", "secrets": [{"name": "A", "from_env": "B", "file": "f"}]},
        "secrets[0].file",
        "'A' has both from_env and file",
        "keep one",
    ),
    (
        {"image": "a", "secrets": [{"name": "A", "as": "argv"}]},
        "secrets[0].as",
        "Input should be 'env' or 'file'",
        "one of these",
    ),
    ({"image": "a", "secrets": [{"as": "env"}]}, "secrets[0].name", "is not set", "add it"),
    ({"image": "a", "cwd": "x"}, "cwd", "'x' is not an absolute path", "such as /data"),
    ({"image": "a", "cwd": "/proc/self/fd/7"}, "cwd", "below /proc", "such as /data"),
    ({"image": "a", "cwd": "/sys"}, "cwd", "at or below /proc, /sys or /dev", "such as /data"),
    ({"image": "a", "cwd": "/a/../b"}, "cwd", "'/a/../b' holds '..'", "such as /data"),
    ({"image": "a", "mounts": "a:/b"}, "mounts", "a:/b", "write a list"),
    ({"image": "a", "mounts": ["/a"]}, "mounts[0]", "'/a' names no target", "SOURCE:TARGET"),
    ({"image": "a", "mounts": [":/a"]}, "mounts[0]", "':/a' names no source", "SOURCE:TARGET"),
    ({"image": "a", "mounts": ["/a:/b:rx"]}, "mounts[0]", "unknown mode 'rx'", "SOURCE:TARGET:rw"),
    ({"image": "a", "mounts": ["/a:/b:rw:ro"]}, "mounts[0]", "mode 'rw:ro'", "SOURCE:TARGET:rw"),
    ({"image": "a", "mounts": ["/a:/b:z"]}, "mounts[0]", "unknown mode 'z'", "relabel"),
    ({"image": "a", "mounts": ["/a:/b:ro,Z"]}, "mounts[0]", "unknown mode 'ro,Z'", "relabel"),
    (
        {"image": "a", "mounts": ["C:\\x:/y:ro"]},
        "mounts[0]",
        "'C:\\\\x:/y:ro' starts with a Windows drive",
        "SOURCE:TARGET",
    ),
    (
        {"image": "a", "mounts": [{"source": "C:/x", "target": "/y"}]},
        "mounts[0].source",
        "'C:/x' is a Windows path",
        "a path of this machine",
    ),
    (
        {"image": "a", "mounts": ["${HOME}/x:/y"]},
        "mounts[0].source",
        "'${HOME}/x' holds a variable",
        "below ~",
    ),
    ({"image": "a", "mounts": ["/a\n:/b"]}, "mounts[0].source", "control character", "a path"),
    (
        {"image": "a", "mounts": [{"source": "/a", "target": "/b", "mode": "RW"}]},
        "mounts[0].mode",
        "'RW' is refused: Input should be 'ro' or 'rw'",
        "one of these",
    ),
    (
        {"image": "a", "mounts": [{"source": "/a", "target": "/b", "readonly": True}]},
        "mounts[0].readonly",
        "'readonly' is unknown",
        "known are source, target, mode, relabel",
    ),
    (
        {"image": "a", "mounts": ["/a:/b", "/c:/b"]},
        "mounts[1].target",
        "'/b' overlaps the target '/b'",
        "a folder of its own",
    ),
    (
        {"image": "a", "mounts": ["/a:/b", "/c:/b/d"]},
        "mounts[1].target",
        "'/b/d' overlaps the target '/b'",
        "a folder of its own",
    ),
    (
        {"image": "a", "mounts": ["/a:/b/d", "/c:/b"]},
        "mounts[1].target",
        "'/b' overlaps the target '/b/d'",
        "a folder of its own",
    ),
    ({"image": "a", "policy": 5}, "policy", "5 is refused", "write a table"),
    ({"image": "a", "policy": ""}, "policy", "'' is not a policy", "a name, a path or a table"),
    (
        {"image": "a", "policy": {"limits": {"pid": 5}}},
        "policy.limits.pid",
        "'pid' is unknown",
        "did you mean 'pids'?",
    ),
    ({"image": "a", "mount": []}, "mount", "'mount' is unknown", "did you mean 'mounts'?"),
    ({"image": "a", "zzz": 1}, "zzz", "'zzz' is unknown", "known are image, command"),
    ({"image": "a", "disabled": "no"}, "disabled", "'no' is refused", "true or false"),
    ({"image": "a", "name": "-x"}, "name", "'-x' is not a server name", "at most 63"),
    ({"image": "a", "name": "a/b"}, "name", "'a/b' is not a server name", "at most 63"),
    ({"image": "a", "name": "x" * 64}, "name", "is not a server name", "at most 63"),
]


@pytest.mark.parametrize(("settings", "setting", "problem", "fix"), REFUSED)
def test_a_refused_setting_is_named_with_value_and_fix(
    settings: dict[str, object], setting: str, problem: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_server(**settings)
    assert caught.value.setting == setting
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("data", "'data' is not an absolute path"),
        ("", "'' is not an absolute path"),
        ("/", "'/' would hide the whole image"),
        ("/a/../etc", "'/a/../etc' holds '..'"),
        ("/..", "'/..' holds '..'"),
        ("//a", "'//a' is not in its shortest form"),
        ("/a//b", "'/a//b' is not in its shortest form"),
        ("/a/", "'/a/' is not in its shortest form"),
        ("/a/./b", "'/a/./b' is not in its shortest form"),
        ("/a\n", "holds a control character"),
        ("/a\0", "holds a control character"),
        ("/a\\b", "holds ':' or a backslash"),
        ("/" + "a" * 4096, "too long"),
        ("/proc", "'/proc' is at or below /proc"),
        ("/proc/self", "'/proc/self' is at or below /proc"),
        ("/sys/fs", "'/sys/fs' is at or below /sys"),
        ("/dev/shm", "'/dev/shm' is at or below /dev"),
        ("/etc", "'/etc' is at or below /etc"),
        ("/etc/passwd", "'/etc/passwd' is at or below /etc"),
        ("/run/secrets", "'/run/secrets' is at or below /run"),
        ("/var/run/x", "'/var/run/x' is at or below /var/run"),
        ("/tmp", "'/tmp' is at or below /tmp"),
        ("/tmp/x", "'/tmp/x' is at or below /tmp"),
        ("/bin", "'/bin' is at or below /bin"),
        ("/sbin/x", "'/sbin/x' is at or below /sbin"),
        ("/lib/x", "'/lib/x' is at or below /lib"),
        ("/lib64", "'/lib64' is at or below /lib64"),
        ("/usr", "'/usr' is at or below /usr"),
        ("/usr/bin", "'/usr/bin' is at or below /usr"),
        ("/usr/src", "'/usr/src' is at or below /usr"),
    ],
)
def test_a_target_that_hides_the_sandbox_is_refused(target: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_server(image="a", mounts=[{"source": "/a", "target": target}])
    assert caught.value.setting == "mounts[0].target"
    assert problem in caught.value.problem
    assert "write an absolute path of the sandbox" in caught.value.fix


@pytest.mark.parametrize(
    "target",
    ["/data", "/home/u/x", "/process", "/usr/src/app", "/usr/share/x", "/libs", "/opt/a b"],
)
def test_another_target_is_accepted(target: str) -> None:
    assert make_server(image="a", mounts=[f"/a:{target}"]).mounts[0].target == target


def test_no_error_shows_a_value_below_env_secrets_or_args() -> None:
    settings: list[dict[str, object]] = [
        {"env": {"A": ["hunter2"]}},
        {"env": {"A": "hunter2\0"}},
        {"env": "hunter2"},
        {"env": [{"hunter2": 1}]},
        {"secrets": "hunter2"},
        {"secrets": ["TOKEN=hunter2"]},
        {"secrets": [{"name": "A", "value": "hunter2"}]},
        {"secrets": {"TOKEN": "hunter2"}},
        {"secrets": [["hunter2"]]},
        {"secrets": [{"name": "A", "from_env": "$hunter2"}]},
        {"args": "hunter2"},
        {"args": ["--token", {"x": "hunter2"}]},
        {"args": ["hunter2\0"]},
        {"zzz": "hunter2", "env": {"A": "hunter2"}},
    ]
    for setting in settings:
        with pytest.raises(ConfigError) as caught:
            make_server(image="a", **setting)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.text("/:.~abrow", max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(list(ServerTable.model_fields))


@given(st.dictionaries(KEYS | st.text(max_size=3), JUNK, max_size=5))
def test_junk_is_a_server_or_a_config_error(settings: dict[str, object]) -> None:
    with suppress(ConfigError):
        make_server(**({"image": "a"} | settings))


@given(st.lists(st.text("ab/:~C\\.rowz,", max_size=12) | st.text(max_size=12), max_size=3))
def test_any_text_is_a_mount_or_a_config_error(mounts: list[str]) -> None:
    with suppress(ConfigError):
        for mount in make_server(image="a", mounts=mounts).mounts:
            assert mount.target.startswith("/")
            assert ".." not in mount.target.split("/")
