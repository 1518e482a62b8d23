"""A server as the user wrote it.

Values only: nothing here reads the environment or a file (see `resolve`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path  # noqa: TC003 - pydantic reads the annotation
from types import MappingProxyType
from typing import Annotated, Final, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator
from pydantic.json_schema import WithJsonSchema

from sandboxed_mcp.config.mounts import Mount, check_cwd, check_targets, parse_mount
from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.problems import RefusedError, Section, Table, parse_table, shown
from sandboxed_mcp.config.programs import Program, plan_program

__all__ = ["DEFAULT_POLICY", "Secret", "ServerConfig", "ServerTable", "check_server_name"]

DEFAULT_POLICY: Final = "offline"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,510}\Z")
_PLACEHOLDER: Final = re.compile(r"(?:\$\{[^{}]*\}|<[^<>]{1,64}>)\Z")
_UNPASSABLE: Final = (
    "the value holds a NUL character or a lone surrogate, or is longer than 128 KiB",
    "no program can be given such a value; pass a file in a mount",
)
_LONGEST_ARGUMENT: Final = (1 << 17) - 1  # Linux, MAX_ARG_STRLEN


def check_server_name(name: str) -> str:
    """Check a server's name: letters, digits, `_`, `.` and `-`, at most 63.

    Raises:
        RefusedError: Anything else.
    """
    if not _NAME.match(name):
        raise RefusedError(
            f"{shown(name)} is not a server name",
            "start with a letter or digit; use letters, digits, '_', '.' and '-', at most 63",
        )
    return name


def _check_reference(name: str) -> str:
    """Check a name below `secrets`, without showing it: it may be the secret itself."""
    if not _VARIABLE.match(name):
        raise RefusedError(
            "the text is not the name of an environment variable",
            "write the name alone (letters, digits, '_'); its value never stands in this file",
        )
    return name


def _check_image(image: str) -> str:
    if not _IMAGE.match(image):
        raise RefusedError(
            f"{shown(image)} is not an image reference", "write NAME:TAG or NAME@sha256:DIGEST"
        )
    return image


def _check_command(command: str) -> str:
    if not command or any(char.isspace() for char in command):
        raise RefusedError(
            f"{shown(command)} is not one program",
            "write the program alone; each argument is an item of args",
        )
    if command.startswith("-") or not command.isprintable():
        raise RefusedError(f"{shown(command)} is not a program", "write its name or its path")
    return command


def _check_argument(value: str) -> str:
    if not _passable(value):
        raise RefusedError(*_UNPASSABLE)
    return value


def _passable(value: str) -> bool:
    """Whether `execve` can pass the value on."""
    try:
        return "\0" not in value and len(value.encode()) <= _LONGEST_ARGUMENT
    except UnicodeEncodeError:
        return False


def _check_env(env: object) -> Mapping[str, str]:
    if not isinstance(env, Mapping):
        raise RefusedError("env is not a table", 'write env = { NAME = "value" }')
    table = cast("Mapping[object, object]", env)
    for name, value in table.items():
        _check_env_item(name, value)
    return MappingProxyType(dict(cast("Mapping[str, str]", table)))


def _check_env_item(name: object, value: object) -> None:
    if not isinstance(name, str) or not _VARIABLE.match(name):
        raise RefusedError(
            f"{shown(name)} is not the name of an environment variable",
            "use letters, digits and '_', not starting with a digit",
        )
    setting = f".{name}"
    if not isinstance(value, str):
        raise RefusedError("the value is not text", 'write it in quotes: "..."', setting)
    if not _passable(value):
        raise RefusedError(*_UNPASSABLE, setting)
    if _PLACEHOLDER.match(value):
        raise RefusedError(
            f"the placeholder {shown(value)} would reach the server as it stands",
            "take the value from the launcher's environment with secrets",
            setting,
        )


class Secret(Table):
    """A value that stands in no configuration file.

    Attributes:
        name: Name of the environment variable, or of the file below `/run/secrets`.
        from_env: The launcher's variable that holds it; `name` unless `file` is set.
        file: A file that holds it, relative to the configuration's folder, or `~/...`.
        delivery: Written `as`: `env` (the server's environment) or `file`.
    """

    name: Annotated[str, AfterValidator(_check_reference)]
    from_env: Annotated[str, AfterValidator(_check_reference)] | None = None
    file: Annotated[str, Field(min_length=1)] | None = None
    delivery: Literal["env", "file"] = Field(default="env", alias="as")

    @model_validator(mode="after")
    def _check_source(self) -> Secret:
        if self.from_env is not None and self.file is not None:
            raise RefusedError(
                f"secret {shown(self.name)} has both from_env and file", "keep one", ".file"
            )
        return self


def _parse_secret(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _check_secrets(secrets: tuple[Secret, ...]) -> tuple[Secret, ...]:
    names = [secret.name for secret in secrets]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise RefusedError(f"secret {shown(name)} is listed twice", "keep one", f"[{index}]")
    return secrets


def _check_mounts(mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
    check_targets(mounts)
    return mounts


def _parse_policy(value: object) -> str | Policy:
    """Take a name or path as it is; `Policy` reports on an inline table by itself."""
    if not isinstance(value, str):
        return Policy.model_validate(value)
    if not value or not value.isprintable():
        raise RefusedError(f"{shown(value)} is not a policy", "write a name, a path or a table")
    return value


def _check_audit(path: str) -> str:
    if not path or not path.isprintable() or path.endswith("/"):
        raise RefusedError(f"{shown(path)} is not a file", 'write a path such as "audit.jsonl"')
    return path


class ServerTable(Table):
    """A server's settings as they stand in `[servers.NAME]`.

    Attributes:
        image: The image to run.
        command: One program; replaces the image's entrypoint. Without `image`, `python` and
            `node` run in the images of this package.
        args: Arguments; without `command` they replace the image's CMD. None: not written.
        env: Variables and values, passed as they stand: nothing is expanded.
        secrets: Names of values that come from the launcher's environment or a file.
        cwd: Working directory inside; None for the image's.
        mounts: Files and folders of the host.
        policy: Name in a `policies` folder, path (it has a `/` or ends in `.toml`), or table.
        audit: File that every event is recorded in, relative to the configuration's folder, or
            `~/...`; one sandbox at a time writes to it.
        disabled: A note to whoever starts servers unasked; naming the server starts it.
    """

    parts = {"policy": Policy, "mounts": Mount, "secrets": Secret}  # noqa: RUF012

    image: Annotated[str, AfterValidator(_check_image)] | None = None
    command: Annotated[str, AfterValidator(_check_command)] | None = None
    args: tuple[Annotated[str, AfterValidator(_check_argument)], ...] | None = None
    env: Annotated[
        Mapping[str, str],
        PlainValidator(_check_env),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    ] = Field(default_factory=lambda: MappingProxyType({}))
    secrets: Annotated[
        tuple[Annotated[Secret, BeforeValidator(_parse_secret)], ...],
        AfterValidator(_check_secrets),
    ] = ()
    cwd: Annotated[str, AfterValidator(check_cwd)] | None = None
    mounts: Annotated[
        tuple[Annotated[Mount, BeforeValidator(parse_mount)], ...],
        AfterValidator(_check_mounts),
    ] = ()
    policy: Annotated[str | Policy, PlainValidator(_parse_policy)] = DEFAULT_POLICY
    audit: Annotated[str, AfterValidator(_check_audit)] | None = None
    disabled: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _check_together(self) -> ServerTable:
        plan_program(self.image, self.command, self.args)
        for index, secret in enumerate(self.secrets):
            if secret.delivery == "env" and secret.name in self.env:
                raise RefusedError(
                    f"{shown(secret.name)} is in env as well", "keep one", f".secrets[{index}]"
                )
        return self

    @property
    def program(self) -> Program:
        """What the container runs."""
        return plan_program(self.image, self.command, self.args)


class ServerConfig(ServerTable):
    """A named server, as written, and where it was written.

    Attributes:
        name: Letters, digits, `_`, `.`, `-`; at most 63.
        base_dir: What relative paths are relative to; None for the current folder.
        section: Where it stands, for error messages.
    """

    internal = frozenset({"base_dir", "section"})

    name: Annotated[str, AfterValidator(check_server_name)]
    base_dir: Path | None = None
    section: Section = Section()

    @property
    def origin(self) -> str | None:
        """The file it stands in; None for arguments and code."""
        return self.section.file


def parse_server(name: str, value: object, section: Section, base_dir: Path) -> ServerConfig:
    """Read a server's table.

    Args:
        name: Its key.
        value: The table as read.
        section: Where it stands.
        base_dir: What its relative paths are relative to.

    Raises:
        ConfigError: With a line for each setting that is refused.
    """
    table = parse_table(ServerTable, value, section)
    written = {key: getattr(table, key) for key in table.model_fields_set}
    return ServerConfig.model_validate(
        written | {"name": name, "base_dir": base_dir, "section": section}
    )
