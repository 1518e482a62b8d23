"""Every error that this package raises, as a tree.

    SandboxError
    |-- ConfigError            what the user wrote cannot be used
    |-- EngineError            the container engine
    |   |-- EngineNotFoundError    no engine answers; lists what was tried
    |   |-- EngineRefusedError     the engine answered with an error; its own words
    |   |-- ImageNotFoundError     the image is not on the engine
    |-- LaunchError            the sandbox did not come up
    |   |-- PlanMismatchError      the engine set something else than the plan says
    |   |-- StartTimeoutError      not ready within limits.start_timeout
    |-- ServerExitedError      the server's container ended

A class exists only where a caller acts on it. An error from elsewhere is translated once, at
the seam where it enters (`raise ... from error`). No message ever holds a secret's value.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "ConfigError",
    "EngineError",
    "EngineNotFoundError",
    "EngineRefusedError",
    "ExitStatus",
    "ImageNotFoundError",
    "LaunchError",
    "PlanMismatchError",
    "SandboxError",
    "ServerExitedError",
    "StartTimeoutError",
]


class SandboxError(Exception):
    """The root: catch this to catch everything that the package raises on purpose."""


class ConfigError(SandboxError):
    """A setting is unknown, malformed, too broad or cannot be enforced.

    Attributes:
        setting: Dotted path of the setting, such as `servers.notes.mounts[0].source`.
        problem: What is wrong, with the value as the user wrote it.
        fix: What to write instead, one clause.
        file: The file that holds the setting; None when it came from code or arguments.
    """

    def __init__(self, setting: str, problem: str, fix: str, *, file: str | None = None) -> None:
        self.setting = setting
        self.problem = problem
        self.fix = fix
        self.file = file
        where = f"{file}: {setting}" if file else setting
        super().__init__(f"{where}: {problem}; {fix}")


class EngineError(SandboxError):
    """The container engine cannot do what is asked."""


class EngineNotFoundError(EngineError):
    """No engine answers.

    Attributes:
        tried: One line for each address that was tried, with the reason it was passed over.
    """

    def __init__(self, tried: tuple[str, ...]) -> None:
        self.tried = tried
        listing = "".join(f"\n  {line}" for line in tried)
        super().__init__(
            "no container engine answers; start Docker or set DOCKER_HOST. Tried:" + listing
        )


class EngineRefusedError(EngineError):
    """The engine answered a request with an error.

    Attributes:
        status: HTTP status code of the answer.
        reason: The engine's own words.
    """

    def __init__(self, action: str, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(f"the engine refused to {action}: {reason} (HTTP {status})")


class ImageNotFoundError(EngineError):
    """The image is not on the engine; nothing is pulled or built at start.

    Attributes:
        image: The reference as configured.
    """

    def __init__(self, image: str, fix: str) -> None:
        self.image = image
        super().__init__(f"image '{image}' is not on this engine; {fix}")


class LaunchError(SandboxError):
    """The sandbox did not come up; nothing of it is left behind."""


class PlanMismatchError(LaunchError):
    """The engine reports other settings than the plan asked for.

    Attributes:
        differences: One sentence for each setting that differs.
    """

    def __init__(self, server: str, differences: tuple[str, ...]) -> None:
        self.differences = differences
        super().__init__(
            f"server '{server}' was not started: the engine did not apply the plan: "
            + "; ".join(differences)
        )


class StartTimeoutError(LaunchError):
    """The server was not ready in time."""


SIGNAL_BASE = 128
LAST_SIGNAL = 64


@dataclass(frozen=True)
class ExitStatus:
    """How a server's container ended.

    Attributes:
        code: The exit code the engine reports (128 + signal for a signal); None when the
            engine could not tell, for instance because it went away.
        oom_killed: Whether the kernel ended a process at the memory limit.
        reason: Why, when we ended it ourselves or the engine went away; otherwise None.
    """

    code: int | None
    oom_killed: bool = False
    reason: str | None = None

    @property
    def signal(self) -> int | None:
        """The signal number when the exit code says that one ended the server."""
        if self.code is not None and SIGNAL_BASE < self.code <= SIGNAL_BASE + LAST_SIGNAL:
            return self.code - SIGNAL_BASE
        return None

    def __str__(self) -> str:
        """One clause, such as `exit code 137, killed at the memory limit`."""
        parts = ["exit code unknown" if self.code is None else f"exit code {self.code}"]
        if self.signal is not None:
            parts.append(f"signal {self.signal}")
        if self.oom_killed:
            parts.append("out of memory: limits.memory was reached")
        if self.reason:
            parts.append(self.reason)
        return ", ".join(parts)


class ServerExitedError(SandboxError):
    """The server's container ended.

    Attributes:
        server: The configured name.
        status: How it ended.
        stderr_tail: The last lines it wrote to stderr, secrets redacted.
    """

    def __init__(self, server: str, status: ExitStatus, stderr_tail: str) -> None:
        self.server = server
        self.status = status
        self.stderr_tail = stderr_tail
        said = f"; its last words on stderr:\n{stderr_tail}" if stderr_tail else "; stderr is empty"
        super().__init__(f"server '{server}' ended ({status}){said}")
