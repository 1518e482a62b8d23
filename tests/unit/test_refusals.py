"""The engine's own words are told with the setting that they are about."""

from __future__ import annotations

import pytest

from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.resolved import ResolvedServer
from sandboxed_mcp.errors import ConfigError, EngineRefusedError
from sandboxed_mcp.sandbox.refusals import name_setting

SERVER = ResolvedServer(name="a", image="example", policy=Policy(), origin="/x/s.toml")


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("Unknown runtime specified no-such", "policy.runtime"),
        (
            "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available",
            "policy.limits.cpus",
        ),
        ("Minimum memory limit allowed is 6MB", "policy.limits.memory"),
        (
            'runc create failed: exec: "nope": executable file not found in $PATH: unknown',
            "command",
        ),
        ("invalid mount config for type bind: bind source path does not exist: /x", "mounts"),
        ("OCI runtime create failed: chdir to cwd (/x) failed", "cwd"),
    ],
)
def test_refusal_names_the_setting_and_keeps_the_words(words: str, setting: str) -> None:
    error = name_setting(EngineRefusedError("create it", 400, words), SERVER)
    assert isinstance(error, ConfigError)
    assert error.setting == f"servers.a.{setting}"
    assert words in str(error)
    assert str(error).startswith("/x/s.toml: servers.a.")


def test_refusal_about_nothing_that_is_known_stays_as_it_is() -> None:
    refusal = EngineRefusedError("create it", 500, "the disk is on fire")
    assert name_setting(refusal, SERVER) is refusal
