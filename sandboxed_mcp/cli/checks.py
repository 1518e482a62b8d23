"""What an engine's description of itself means for sandboxes: findings, each with what to do.

Pure: the engine's answers come in (Docker Engine API 1.41, `/info` and `/version`), findings
go out.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from sandboxed_mcp.text import sanitize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.cli.probe import Attempt
    from sandboxed_mcp.engine.api import Engine
    from sandboxed_mcp.engine.orphans import Orphan

__all__ = [
    "Finding",
    "check_engine",
    "check_images",
    "check_leftovers",
    "check_limits",
    "check_proof",
    "check_runtimes",
    "check_security",
]

State = Literal["ok", "warn", "fail"]

NAME_CHARS: Final = 60
NEEDED_IMAGES: Final = frozenset({"python", "node"})
SLOW_DRIVERS: Final = frozenset({"vfs"})
RUNC_FIXED: Final = (1, 1, 12)
# Distributions repair a release without renaming it; this is Debian 12's repaired 1.1.5.
RUNC_REPAIRED: Final = re.compile(r"1\.1\.5\+ds1-1\+deb12u[1-9]")
LEFTOVERS_FIX: Final = "run 'sandboxed-mcp gc'"
_LIMITS: Final = (
    ("MemoryLimit", "limits.memory", "boot with cgroup_enable=memory"),
    ("SwapLimit", "limits.memory (swap)", "boot with swapaccount=1, or use cgroup version 2"),
    ("PidsLimit", "limits.pids", "use a kernel with the pids cgroup controller"),
    ("CpuCfsQuota", "limits.cpus", "use a kernel with CONFIG_CFS_BANDWIDTH"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        state: `ok`, `warn` (it works, with a drawback) or `fail` (sandboxes do not work, or
            are not safe).
        text: What was found.
        fix: What to do about it; empty when there is nothing to do.
    """

    name: str
    state: State
    text: str
    fix: str = ""


def check_engine(
    engine: Engine, version: Mapping[str, Any], info: Mapping[str, Any]
) -> list[Finding]:
    """Which engine answers, over what, and how it stores containers."""
    words = f"{_engine_name(version)} {_word(version, 'Version')}, API {engine.version}"
    return [
        Finding("engine", "ok", f"{words}, at {engine.endpoint}"),
        *_check_address(engine),
        _check_storage(info),
    ]


def _engine_name(version: Mapping[str, Any]) -> str:
    components: list[dict[str, Any]] = version.get("Components") or []
    podman = any("Podman" in str(one.get("Name")) for one in components)
    return "Podman" if podman else "Docker"


def _check_address(engine: Engine) -> list[Finding]:
    endpoint = engine.endpoint
    if endpoint.is_local:
        return []
    if endpoint.url.startswith("tcp:") and (endpoint.tls_dir is None or not endpoint.tls_verify):
        text = "the engine is asked over TCP without verified TLS: secrets pass in the clear"
        return [Finding("address", "warn", text, "use ssh:// or set DOCKER_TLS_VERIFY=1")]
    return [
        Finding("address", "ok", "the engine is on another machine: no secret files, no mounts")
    ]


def _check_storage(info: Mapping[str, Any]) -> Finding:
    driver = _word(info, "Driver")
    if driver in SLOW_DRIVERS:
        text = f"storage driver {driver} copies the whole image at every start"
        return Finding("storage", "warn", text, "configure the engine for overlay2")
    return Finding("storage", "ok", f"storage driver {driver}")


def check_runtimes(version: Mapping[str, Any], info: Mapping[str, Any]) -> list[Finding]:
    """The runtimes that start containers, and the default one's known faults."""
    runtimes: dict[str, Any] = info.get("Runtimes") or {}
    names = sorted({sanitize(name, NAME_CHARS) for name in runtimes})
    default = _word(info, "DefaultRuntime")
    return [
        Finding("runtimes", "ok", f"{', '.join(names) or 'unknown'}; the default is {default}"),
        *_check_runc(version),
    ]


def _check_runc(version: Mapping[str, Any]) -> list[Finding]:
    components: list[dict[str, Any]] = version.get("Components") or []
    for one in components:
        if one.get("Name") == "runc":
            details: dict[str, Any] = one.get("Details") or {}
            return [_judge_runc(_word(one, "Version"), _word(details, "GitCommit"))]
    return []


def _judge_runc(release: str, build: str) -> Finding:
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", release)
    if found is None:
        return Finding("runc", "warn", f"runc has the unknown version '{release}'")
    if tuple(map(int, found.groups())) >= RUNC_FIXED:
        return Finding("runc", "ok", f"runc {release}")
    if RUNC_REPAIRED.match(build) or RUNC_REPAIRED.match(release):
        return Finding("runc", "ok", f"runc {build}, with CVE-2024-21626 repaired by Debian")
    return Finding(
        "runc",
        "warn",
        f"runc {release} is older than 1.1.12 and may have CVE-2024-21626, a way out of a "
        "container through its working directory; such directories are refused here",
        "update runc to 1.1.12, or see that your distribution has repaired its version",
    )


def check_limits(info: Mapping[str, Any]) -> list[Finding]:
    """Which limits the kernel can enforce; a launch is refused when one cannot be."""
    missing = [
        Finding("limits", "fail", f"{setting} cannot be enforced, so nothing is started", fix)
        for key, setting, fix in _LIMITS
        if not info.get(key)
    ]
    version, driver = _word(info, "CgroupVersion"), _word(info, "CgroupDriver")
    text = f"cgroup version {version} ({driver}): memory, swap, pids, cpu"
    return missing or [Finding("limits", "ok", f"{text} can be limited")]


def check_security(info: Mapping[str, Any]) -> list[Finding]:
    """The layers besides namespaces and capabilities: seccomp, LSM, user namespaces."""
    options = _parse_options(info.get("SecurityOptions") or [])
    return [_check_seccomp(options), _check_lsm(options), _check_users(options)]


def _parse_options(options: list[str]) -> dict[str, str]:
    """`name=seccomp,profile=default` becomes `{"seccomp": "default"}`."""
    found: dict[str, str] = {}
    for option in options:
        parts = [part.partition("=") for part in option.split(",")]
        pairs = {key: value for key, _, value in parts}
        found[pairs.get("name", option)] = pairs.get("profile", "")
    return found


def _check_seccomp(options: Mapping[str, str]) -> Finding:
    # The engine's own profile does not matter: every container is given ours.
    if "seccomp" in options:
        return Finding("seccomp", "ok", "on; every container gets our filter of system calls")
    return Finding(
        "seccomp",
        "fail",
        "the engine or its kernel has no seccomp, so no server will be started",
        "run the engine on a kernel with CONFIG_SECCOMP_FILTER",
    )


def _check_lsm(options: Mapping[str, str]) -> Finding:
    names = [name for name in ("apparmor", "selinux") if name in options]
    if names:
        return Finding("lsm", "ok", f"{' and '.join(names)} confines containers")
    return Finding(
        "lsm",
        "warn",
        "neither AppArmor nor SELinux: one layer less between a server and the kernel",
        "enable one in the host's kernel, if there is a choice",
    )


def _check_users(options: Mapping[str, str]) -> Finding:
    if "rootless" in options:
        return Finding("users", "ok", "the engine is rootless")
    if "userns" in options:
        return Finding("users", "ok", "root of a container is another user on the host")
    text = "no user namespaces, and the engine is root; servers run as user 65532 all the same"
    return Finding("users", "ok", text)


def check_images(expected: Mapping[str, str], found: Mapping[str, str | None]) -> list[Finding]:
    """Whether each image is there and was built from this version's recipe.

    Args:
        expected: The content label of each image, by name.
        found: The label on the engine, empty when there is none; None for a missing image.
    """
    findings: list[Finding] = []
    for name, content in expected.items():
        label, fix = found.get(name), f"run 'sandboxed-mcp build {name}'"
        if label is None:
            state: State = "fail" if name in NEEDED_IMAGES else "warn"
            findings.append(Finding(f"image {name}", state, "is not on the engine", fix))
        elif label != content:
            text = f"was built from another recipe ({sanitize(label, NAME_CHARS) or 'no label'})"
            findings.append(Finding(f"image {name}", "warn", text, fix))
        else:
            findings.append(Finding(f"image {name}", "ok", content))
    return findings


def check_leftovers(orphans: list[Orphan]) -> Finding:
    """What launchers that are gone left behind."""
    if not orphans:
        return Finding("leftovers", "ok", "none")
    count = Counter(one.kind for one in orphans)
    text = f"containers: {count['container']}, folders of secret files: {count['secrets']}"
    text += f", control sockets: {count['control']}"
    return Finding("leftovers", "warn", f"{text}, of launchers that are gone", LEFTOVERS_FIX)


def check_proof(attempts: list[Attempt], seconds: float) -> list[Finding]:
    """What a program found that tried to get out of a real sandbox."""
    possible = [one for one in attempts if not one.blocked]
    if not possible:
        titles = ", ".join(one.title for one in attempts)
        return [Finding("proof", "ok", f"blocked in a real sandbox ({seconds:.1f} s): {titles}")]
    fix = "do not run servers on this engine; report it"
    return [Finding("proof", "fail", f"{one.title}: {one.outcome}", fix) for one in possible]


def _word(table: Mapping[str, Any], key: str) -> str:
    return sanitize(str(table.get(key) or "unknown"), NAME_CHARS)
