"""From a server as written to one with nothing left to look up.

The only place of the package that reads the environment and the file system for a launch:
policy, user, secrets, mounts, in this order. Everything that is refused is reported at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sandboxed_mcp.config.policies import find_policy, load_policy
from sandboxed_mcp.config.policy import CALLER, Policy
from sandboxed_mcp.config.problems import RefusedError, Section, join_problems, shown
from sandboxed_mcp.config.resolved import (
    ResolvedAudit,
    ResolvedMount,
    ResolvedSecret,
    ResolvedServer,
)
from sandboxed_mcp.config.secret_values import resolve_secret
from sandboxed_mcp.config.sources import read_host, resolve_mount
from sandboxed_mcp.config.swaps import Way, check_ways
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandboxed_mcp.config.servers import ServerConfig

__all__ = ["resolve_server"]

_Value = TypeVar("_Value")


def resolve_server(
    config: ServerConfig,
    *,
    environ: Mapping[str, str],
    base_dir: Path | None = None,
    origin: str | None = None,
) -> ResolvedServer:
    """Resolve a server: read its policy, take its secrets, check its mounts.

    Args:
        config: As written.
        environ: The launcher's environment: secrets, HOME, and where engines listen.
        base_dir: What relative paths are relative to; by default the folder of the server's
            file, else the current one.
        origin: The file for error messages; by default the server's own.

    Raises:
        ConfigError: With a line for each thing that is missing or refused.
    """
    return _Resolution(config, environ, base_dir, origin).run()


class _Resolution:
    """One run of `resolve_server`: collects refusals, so that all are shown together."""

    def __init__(
        self,
        config: ServerConfig,
        environ: Mapping[str, str],
        base_dir: Path | None,
        origin: str | None,
    ) -> None:
        own = config.section
        self.config = config
        self.environ = environ
        self.base_dir = (base_dir or config.base_dir or _current_folder()).absolute()
        self.section = Section(origin or own.file, own.path, own.sandbox)
        self.host = read_host(environ)
        self.errors: list[ConfigError] = []
        self.policy_file: Path | None = None

    def run(self) -> ResolvedServer:
        """Resolve everything; raise what was refused."""
        config = self.config
        policy = self.attempt(".policy", self.policy)
        secrets = self.secrets()
        audit = self.attempt(".audit", self.audit)
        mounts = self.mounts(policy.user) if policy else ()
        if self.errors or policy is None:
            raise join_problems(self.errors)
        program = config.program
        return ResolvedServer(
            name=config.name,
            image=program.image,
            entrypoint=program.entrypoint,
            args=program.args,
            env=config.env,
            secrets=secrets,
            cwd=config.cwd,
            mounts=mounts,
            policy=policy,
            origin=self.section.file,
            audit=audit,
        )

    def attempt(self, setting: str, act: Callable[[], _Value]) -> _Value | None:
        """Do one step; a refusal is kept and None returned."""
        try:
            return act()
        except RefusedError as error:
            problem = self.section.error(setting + error.setting, error.problem, error.fix)
            self.errors.append(problem)
        except ConfigError as error:
            self.errors.append(error)
        return None

    def policy(self) -> Policy:
        written = self.config.policy
        if isinstance(written, str):
            self.policy_file = find_policy(written, self.base_dir, self.host)
            written = load_policy(self.policy_file)
        if written.user != CALLER:
            return written
        return written.model_copy(update={"user": _caller()})

    def secrets(self) -> tuple[ResolvedSecret, ...]:
        resolved = (
            self.attempt(
                f".secrets[{index}]",
                lambda secret=secret: resolve_secret(
                    secret, self.base_dir, self.host, self.environ
                ),
            )
            for index, secret in enumerate(self.config.secrets)
        )
        return tuple(one for one in resolved if one is not None)

    def audit(self) -> ResolvedAudit | None:
        written = self.config.audit
        if written is None:
            return None
        path = str(self.host.expand(written, self.base_dir))
        return ResolvedAudit(path, self.section.setting(".audit"), self.section.file)

    def mounts(self, user: str) -> tuple[ResolvedMount, ...]:
        resolved = [
            self.attempt(
                f".mounts[{index}].source",
                lambda mount=mount: resolve_mount(mount, self.base_dir, self.host, user),
            )
            for index, mount in enumerate(self.config.mounts)
        ]
        mounts = tuple(one for one in resolved if one is not None)
        if not self.errors:
            self.attempt(".mounts", lambda: check_ways(self.ways(), mounts))
        return mounts

    def ways(self) -> list[Way]:
        """The paths that the next launch will follow again."""
        config, expand = self.config, self.host.expand
        ways = [
            Way(expand(mount.source, self.base_dir), f"the source {shown(mount.source)}")
            for mount in config.mounts
        ]
        ways += [
            Way(expand(secret.file, self.base_dir), f"the secret's file {shown(secret.file)}")
            for secret in config.secrets
            if secret.file is not None
        ]
        own = {"the configuration": self.section.file, "the policy": self.policy_file}
        ways += [
            Way(Path(path).absolute(), f"{label} {shown(str(path))}")
            for label, path in own.items()
            if path is not None
        ]
        return ways


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(
            "(the current folder)", f"it is gone ({error.strerror})", "start in one that is there"
        ) from None


def _caller() -> str:
    if os.getuid() == 0:
        raise RefusedError(
            f"user '{CALLER}' is root here",
            'write "0:0" if the server shall be root, or numbers such as "65532:65532"',
            ".user",
        )
    return f"{os.getuid()}:{os.getgid()}"
