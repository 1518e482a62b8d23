"""Resolving a server: policy, user, secrets, mounts, against a real file system."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.config.mounts import Mount
from sandboxed_mcp.config.places import BROAD, CREDENTIALS, SYSTEM
from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.problems import RefusedError, Section
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.config.resolved import ResolvedMount, ResolvedSecret, ResolvedServer
from sandboxed_mcp.config.servers import Secret, ServerConfig
from sandboxed_mcp.config.sources import Host, read_host, resolve_mount
from sandboxed_mcp.config.swaps import lookup_folders
from sandboxed_mcp.errors import ConfigError

OTHER = "54321:54321"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    (path / "data").mkdir(mode=0o755)
    return path


def resolve(
    work: Path, environ: dict[str, str] | None = None, **settings: object
) -> ResolvedServer:
    config = ServerConfig(**({"name": "notes", "image": "a"} | settings))  # pyright: ignore[reportArgumentType]
    environ = {"HOME": str(work.parent / "home")} | (environ or {})
    return resolve_server(config, environ=environ, base_dir=work)


def refusal(work: Path, environ: dict[str, str] | None = None, **settings: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve(work, environ, **settings)
    return caught.value


@pytest.mark.usefixtures("home")
def test_a_server_resolves_to_values_with_nothing_left_to_look_up(work: Path) -> None:
    server = resolve(
        work,
        {"TOKEN": "hunter2"},
        args=["serve"],
        env={"A": "1"},
        secrets=["TOKEN"],
        cwd="/data",
        mounts=["data:/data"],
    )
    assert server == ResolvedServer(
        name="notes",
        image="a",
        entrypoint=None,
        args=("serve",),
        env={"A": "1"},
        secrets=(ResolvedSecret("TOKEN", "hunter2", "env"),),
        cwd="/data",
        mounts=(ResolvedMount(str(work / "data"), "/data", True, None, "data"),),
        policy=Policy(),
        origin=None,
    )
    assert "hunter2" not in repr(server)


@pytest.mark.usefixtures("home")
def test_everything_that_is_refused_is_shown_at_once(work: Path) -> None:
    error = refusal(
        work, policy={"user": OTHER}, secrets=["NO_A", "NO_B"], mounts=["nope:/a", "/proc:/b"]
    )
    settings = [line.partition(": ")[0] for line in str(error).splitlines()]
    assert settings == ["secrets[0]", "secrets[1]", "mounts[0].source", "mounts[1].source"]


@pytest.mark.usefixtures("home")
def test_an_error_names_file_and_full_setting(work: Path) -> None:
    file = str(work / "sandboxed-mcp.toml")
    config = ServerConfig(
        name="notes",
        image="a",
        policy="nope",
        base_dir=work,
        section=Section(file, "servers.notes"),
    )
    with pytest.raises(ConfigError) as caught:
        resolve_server(config, environ={})
    assert caught.value.file == file
    assert caught.value.setting == "servers.notes.policy"
    assert "there is no policy 'nope'" in caught.value.problem


# -- user


@pytest.mark.usefixtures("home")
def test_the_caller_is_the_launching_user_and_never_root(work: Path) -> None:
    if os.getuid() != 0:
        assert (
            resolve(work, policy={"user": "caller"}).policy.user == f"{os.getuid()}:{os.getgid()}"
        )
        return
    error = refusal(work, policy={"user": "caller"})
    assert error.setting == "policy.user"
    assert "'caller' is root here" in error.problem
    assert '"0:0"' in error.fix
    os.setresgid(4242, 4242, 0)
    os.setresuid(4242, 0, 0)
    try:
        assert resolve(work, policy={"user": "caller"}).policy.user == "4242:4242"
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


# -- secrets


@pytest.mark.usefixtures("home")
def test_a_secret_comes_from_a_variable_or_a_file(work: Path) -> None:
    (work / "key").write_text("one\ntwo\n")
    (work / "key").chmod(0o600)
    server = resolve(
        work,
        {"A": "a", "OTHER": "b"},
        secrets=[
            "A",
            {"name": "B", "from_env": "OTHER", "as": "file"},
            {"name": "C", "file": "key"},
        ],
    )
    assert server.secrets == (
        ResolvedSecret("A", "a", "env"),
        ResolvedSecret("B", "b", "file"),
        ResolvedSecret("C", "one\ntwo", "env"),
    )


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "the variable 'TOKEN' is not set in the launcher's environment"),
        ({"TOKEN": ""}, "the variable 'TOKEN' is empty in the launcher's environment"),
        ({"TOKEN": "hunter2\0"}, "the variable 'TOKEN' holds a NUL character"),
        ({"TOKEN": "hunter2\udcff"}, "the variable 'TOKEN' is not UTF-8"),
        ({"TOKEN": "hunter2" * 20_000}, "the variable 'TOKEN' is longer than 100000 bytes"),
    ],
)
def test_a_missing_or_unusable_variable_stops_the_launch(
    work: Path, environ: dict[str, str], problem: str
) -> None:
    error = refusal(work, environ, secrets=["TOKEN"])
    assert error.setting == "secrets[0]"
    assert error.problem == problem
    assert "hunter2" not in str(error)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("content", "mode", "problem", "fix"),
    [
        (None, 0, "the file 'key' cannot be read", "correct it"),
        (b"hunter2", 0o644, "the file 'key' is open to every user (mode 0644)", "chmod 600"),
        (b"hunter2", 0o602, "the file 'key' is open to every user (mode 0602)", "chmod 600"),
        (b"", 0o600, "the file 'key' is empty", "write the value to it"),
        (b"\n", 0o600, "the file 'key' is empty", "write the value to it"),
        (b"hunter2\xff", 0o600, "byte 7 is not UTF-8", "save it as UTF-8"),
        (b"hunter2\0", 0o600, "the file 'key' holds a NUL character", "remove it"),
        (b"hunter2" * 20_000, 0o600, "larger than 100000 bytes", "make it smaller"),
    ],
)
def test_a_missing_or_unusable_secret_file_stops_the_launch(
    work: Path, content: bytes | None, mode: int, problem: str, fix: str
) -> None:
    if content is not None:
        (work / "key").write_bytes(content)
        (work / "key").chmod(mode)
    error = refusal(work, secrets=[{"name": "KEY", "file": "key"}])
    assert error.setting.startswith("secrets[0]")
    assert problem in error.problem
    assert fix in error.fix
    assert "hunter2" not in str(error)


@pytest.mark.usefixtures("home")
def test_a_pipe_as_secret_file_is_refused_without_waiting(work: Path) -> None:
    os.mkfifo(work / "key", 0o600)
    error = refusal(work, secrets=[{"name": "KEY", "file": "key"}])
    assert "is not a regular file" in error.problem


# -- mounts


def check(
    source: Path | str, host: Host, *, mode: str = "ro", user: str = "65532:65532"
) -> ResolvedMount:
    mount = Mount.model_validate({"source": str(source), "target": "/data", "mode": mode})
    return resolve_mount(mount, Path("/"), host, user)


def refused(
    source: Path | str, host: Host, *, mode: str = "ro", user: str = "65532:65532"
) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        check(source, host, mode=mode, user=user)
    assert repr(str(source))[1:-1] in caught.value.problem
    assert str(caught.value).isprintable()
    return caught.value


@pytest.fixture
def host(home: Path) -> Host:
    return Host(home=str(home))


def test_a_source_is_resolved_and_what_was_written_is_kept(work: Path, home: Path) -> None:
    (work / "link").symlink_to("data")
    (home / "docs").mkdir()
    server = resolve(work, mounts=["link:/a", "./data/../data:/b", "~/docs:/c"])
    assert [(mount.source, mount.written) for mount in server.mounts] == [
        (str(work / "data"), "link"),
        (str(work / "data"), "./data/../data"),
        (str(home / "docs"), "~/docs"),
    ]


def test_a_file_may_be_mounted(work: Path, host: Host) -> None:
    (work / "f").write_text("x")
    assert check(work / "f", host).read_only


def test_a_missing_source_is_refused(work: Path, host: Host) -> None:
    error = refused(work / "nope", host)
    assert "cannot be mounted: No such file or directory" in error.problem
    assert "create it" in error.fix


def test_a_loop_of_links_is_refused(work: Path, host: Host) -> None:
    (work / "a").symlink_to("b")
    (work / "b").symlink_to("a")
    assert "Too many levels of symbolic links" in refused(work / "a", host).problem


def test_a_pipe_a_device_and_a_socket_are_refused(work: Path, host: Host) -> None:
    os.mkfifo(work / "pipe")
    assert "is a pipe" in refused(work / "pipe", host).problem
    assert "is a device" in refused("/dev/null", host).problem
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(work / "sock"))
        assert "is a socket, through which a server reaches" in refused(work / "sock", host).problem


@pytest.mark.parametrize("place", [place for place in SYSTEM if Path(place).is_dir()])
def test_a_folder_of_the_system_is_refused(place: str, host: Host) -> None:
    assert "of the system" in refused(place, host).problem
    listed = Path(place).iterdir() if os.access(place, os.R_OK) else iter(())
    below = next((path for path in listed if path.is_dir()), None)
    if below is not None and not below.is_symlink():
        assert "is at or below" in refused(below, host).problem


@pytest.mark.parametrize("place", [place for place in BROAD if Path(place).is_dir()])
def test_a_broad_folder_is_refused(place: str, host: Host) -> None:
    error = refused(place, host)
    assert "is too broad" in error.problem or "of the system" in error.problem
    assert "name a narrower folder" in error.fix


def test_the_home_and_what_holds_it_are_refused(home: Path, host: Host) -> None:
    for path in (home, home.parent):
        error = refused(path, host)
        assert "is or holds your home" in error.problem
        assert "name a narrower folder" in error.fix


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credentials_are_refused_with_what_is_below_and_above(
    name: str, home: Path, host: Host
) -> None:
    place = home / name
    (place / "deep").mkdir(parents=True)
    assert f"holds credentials (~/{name})" in refused(place, host).problem
    assert f"holds credentials (~/{name})" in refused(place / "deep", host).problem
    if place.parent != home:
        assert f"holds credentials (~/{name})" in refused(place.parent, host).problem


def test_credentials_behind_a_link_are_refused(work: Path, home: Path, host: Host) -> None:
    (work / "keys").mkdir()
    (home / ".ssh").symlink_to(work / "keys")
    assert "holds credentials (~/.ssh)" in refused(work / "keys", host).problem
    assert "holds credentials (~/.ssh)" in refused(work, host).problem


def test_anybodys_ssh_folder_is_refused(work: Path, host: Host) -> None:
    (work / ".ssh").mkdir()
    assert "holds credentials" in refused(work / ".ssh", host).problem


def test_a_link_out_of_the_folder_is_shown_and_judged_by_where_it_leads(
    work: Path, host: Host
) -> None:
    (work / "link").symlink_to("/etc")
    error = refused(work / "link", host)
    assert "(really '/etc') is at or below /etc" in error.problem


def test_a_folder_with_a_socket_is_refused(work: Path, host: Host) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(work / "data" / "any.sock"))
        error = refused(work / "data", host)
    assert f"holds the socket '{work}/data/any.sock'" in error.problem


def test_a_folder_above_an_engine_socket_is_refused(work: Path, home: Path) -> None:
    (work / "data" / "deep").mkdir()
    path = work / "data" / "deep" / "engine.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        for variable in ("DOCKER_HOST", "CONTAINER_HOST"):
            host = read_host({"HOME": str(home), variable: f"unix://{path}"})
            assert f"holds the socket '{path}'" in refused(work / "data", host).problem
        host = read_host({"HOME": str(home), "SSH_AUTH_SOCK": str(path)})
        assert f"holds the socket '{path}'" in refused(work / "data", host).problem


def test_a_folder_with_another_file_system_below_is_refused(work: Path, home: Path) -> None:
    host = Host(str(home), mount_points=(str(work), str(work / "data"), str(work / "data" / "x")))
    error = refused(work / "data", host)
    assert f"holds another file system ('{work}/data/x'), which the mount" in error.problem
    assert "mount that one by itself" in error.fix


def test_the_mount_points_of_this_machine_are_read(home: Path) -> None:
    if Path("/proc/self/mountinfo").exists():
        assert "/proc" in read_host({"HOME": str(home)}).mount_points


def test_a_source_that_the_server_cannot_write_is_refused_when_writable(
    work: Path, host: Host
) -> None:
    error = refused(work / "data", host, mode="rw", user=OTHER)
    assert f"belongs to {os.getuid()}:{os.getgid()} with mode 0755" in error.problem
    assert f"the server's user {OTHER} cannot write to it" in error.problem
    assert f"chown {OTHER}" in error.fix
    assert ("caller" in error.fix) is (os.getuid() != 0)


@pytest.mark.parametrize(
    ("mode", "user", "writable"),
    [
        (0o700, "owner", True),
        (0o077, "owner", False),
        (0o770, "group", True),
        (0o707, "group", False),
        (0o773, "other", True),
        (0o772, "other", False),
        (0o775, "other", False),
    ],
)
def test_owner_group_and_others_are_told_apart(
    work: Path, host: Host, mode: int, user: str, *, writable: bool
) -> None:
    (work / "data").chmod(mode)
    uid, gid = os.getuid(), os.getgid()
    ids = {"owner": f"{uid}:54321", "group": f"54321:{gid}", "other": OTHER}[user]
    if writable:
        assert not check(work / "data", host, mode="rw", user=ids).read_only
    elif os.getuid() == 0:  # anyone else cannot list such a folder, and is told so
        assert "cannot write to it" in refused(work / "data", host, mode="rw", user=ids).problem


def test_a_source_that_the_server_cannot_read_is_refused(work: Path, host: Host) -> None:
    (work / "data").chmod(0o700)
    error = refused(work / "data", host, user=OTHER)
    assert f"the server's user {OTHER} cannot read it" in error.problem
    assert "chmod o+rX" in error.fix


@pytest.mark.usefixtures("home")
def test_a_source_that_a_server_could_swap_is_refused(work: Path) -> None:
    (work / "data" / "inner").mkdir()
    user = {"user": f"{os.getuid()}:{os.getgid()}"} if os.getuid() else {"user": "0:0"}
    error = refusal(work, policy=user, mounts=["data/inner:/a", "data:/b:rw"])
    assert error.setting == "mounts[1].source"
    assert "'data' is writable and holds the source 'data/inner', which" in error.problem
    assert "make it ro" in error.fix
    assert len(resolve(work, policy=user, mounts=["data/inner:/a:rw", "data:/b"]).mounts) == 2


@pytest.mark.usefixtures("home")
def test_a_writable_mount_never_holds_the_configuration_or_the_policy(work: Path) -> None:
    user = f"{os.getuid()}:{os.getgid()}"
    (work / "p.toml").write_text(f'user = "{user}"')
    (work / "data" / "p.toml").write_text(f'user = "{user}"')
    file = work / "data" / "sandboxed-mcp.toml"
    for policy, section in (
        ("p.toml", Section(str(file), "servers.notes")),
        ("data/p.toml", Section()),
    ):
        for mode in ("ro", "rw"):
            config = ServerConfig(
                name="notes",
                image="a",
                policy=policy,
                mounts=(Mount.model_validate({"source": "data", "target": "/a", "mode": mode}),),
                base_dir=work,
                section=section,
            )
            environ = {"HOME": str(work.parent / "home")}
            if mode == "ro":
                assert resolve_server(config, environ=environ).mounts
                continue
            with pytest.raises(ConfigError, match=r"'data' is writable and holds the (conf|pol)"):
                resolve_server(config, environ=environ)


@pytest.mark.usefixtures("home")
def test_a_path_through_a_writable_mount_is_refused_wherever_it_leads(work: Path) -> None:
    user = {"user": f"{os.getuid()}:{os.getgid()}"} if os.getuid() else {"user": "0:0"}
    (work / "elsewhere").mkdir(mode=0o755)
    (work / "key").write_text("hunter2")
    (work / "key").chmod(0o600)
    (work / "data" / "planted").symlink_to(work / "elsewhere")
    (work / "data" / "key").symlink_to(work / "key")
    (work / "outside").symlink_to("data/planted")
    secret = {"name": "KEY", "file": "data/key"}
    for mounts, secrets in (
        (["data:/a:rw", "data/planted:/b"], []),
        (["data:/a:rw", "outside:/b"], []),
        (["data:/a:rw"], [secret]),
    ):
        error = refusal(work, policy=user, mounts=mounts, secrets=secrets)
        assert error.setting == "mounts[0].source"
        assert "which the server could swap for something else" in error.problem
    assert resolve(work, policy=user, mounts=["data:/a:rw", "elsewhere:/b"]).mounts


def test_the_folders_of_a_path_are_those_where_its_names_are_looked_up(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b/../loop")
    (tmp_path / "a" / "loop").symlink_to("../link")
    folders = lookup_folders(f"{root}/a/./b//../b/none/x")
    inner = [root, f"{root}/a", f"{root}/a", f"{root}/a/b", f"{root}/a/b/none"]
    assert folders[-5:] == inner
    assert f"{root}/a" in lookup_folders(f"{root}/link")


PATHS = st.text() | st.text("ab/.~:\0\ud800", max_size=12)


@given(PATHS, PATHS, PATHS)
def test_any_path_resolves_or_is_a_config_error(policy: str, source: str, file: str) -> None:
    with suppress(ConfigError):
        config = ServerConfig(
            name="notes",
            image="a",
            policy=policy,
            mounts=(Mount(source=source, target="/a"),),
            secrets=(Secret(name="A", file=file),),
        )
        resolve_server(config, environ={}, base_dir=Path("/nonexistent"))


@pytest.mark.usefixtures("home")
def test_another_users_home_is_never_guessed(work: Path) -> None:
    error = refusal(work, mounts=["~root/x:/a"])
    assert "'~root/x' names another user's home" in error.problem
