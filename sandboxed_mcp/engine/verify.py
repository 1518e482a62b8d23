"""What the engine made of a create request, compared with what was asked. Pure.

An engine may drop a limit that its kernel lacks, or add to what was asked by its own
configuration. Every difference is named; the caller stops at the first launch that has one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandboxed_mcp.plan import ImageFacts

__all__ = ["compare_confinement", "compare_container", "compare_status"]

_EXACT = (
    "NetworkMode",
    "ReadonlyRootfs",
    "Privileged",
    "CgroupnsMode",
    "IpcMode",
    "AutoRemove",
    "Memory",
    "MemorySwap",
    "NanoCpus",
    "PidsLimit",
    "ShmSize",
    "Tmpfs",
)
_EMPTY = (
    "Devices",
    "DeviceRequests",
    "DeviceCgroupRules",
    "ExtraHosts",
    "GroupAdd",
    "Links",
    "OomKillDisable",
    "PidMode",
    "PortBindings",
    "Sysctls",
    "UTSMode",
    "UsernsMode",
    "VolumesFrom",
)
_NET_ADMIN = 1 << 12
_SHOWN = 60


def compare_container(
    asked: Mapping[str, Any], image: ImageFacts, found: Mapping[str, Any]
) -> tuple[str, ...]:
    """One sentence for each setting that differs.

    Args:
        asked: The body of the create request.
        image: What the engine knows of the image.
        found: The engine's answer to `GET /containers/ID/json` (Docker Engine API 1.41).
    """
    host = found["HostConfig"]
    return (
        *_compare_host(asked["HostConfig"], host),
        *_compare_security(asked["HostConfig"], host),
        *_compare_process(asked, image, found),
        *_compare_mounts(asked["HostConfig"], found.get("Mounts") or []),
    )


def compare_status(status: str, *, net_admin: bool) -> tuple[str, ...]:
    """What a running process really has, against what it shall have.

    Args:
        status: The text of /proc/PID/status (proc(5)).
        net_admin: Whether it shall have CAP_NET_ADMIN; any other capability is a difference.
    """
    fields = _fields(status)
    wanted = _NET_ADMIN if net_admin else 0
    return (*_compare_capabilities(fields, wanted), *_compare_confinement(fields))


def compare_confinement(status: str) -> tuple[str, ...]:
    """Whether a running process can gain nothing and is filtered, whatever else it has.

    Args:
        status: The text of /proc/PID/status (proc(5)).
    """
    return tuple(_compare_confinement(_fields(status)))


def _fields(status: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)


def _compare_capabilities(fields: Mapping[str, str], wanted: int) -> Iterator[str]:
    for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
        if int(fields.get(name, "f"), 16) & ~wanted:
            yield f"the process has {name} {fields.get(name, 'unknown')}"


def _compare_confinement(fields: Mapping[str, str]) -> Iterator[str]:
    if fields.get("NoNewPrivs") != "1":
        yield "the process may gain privileges (NoNewPrivs is not set)"
    if fields.get("Seccomp") != "2":
        yield "the process has no seccomp filter"


def _compare_host(asked: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[str]:
    for key in _EXACT:
        if (host.get(key) or None) != (asked[key] or None):  # an engine may write null for {}
            yield f"{key} is {host.get(key)!r}, not {asked[key]!r}"
    for key in _EMPTY:
        if host.get(key):
            yield f"{key} is {host[key]!r}, not empty"
    section: Mapping[str, Any]
    for key, name, wanted in (("LogConfig", "Type", "none"), ("RestartPolicy", "Name", "no")):
        section = host.get(key) or {}
        if section.get(name) != wanted:
            yield f"{key} is {host.get(key)!r}, not {wanted!r}"
    if "Runtime" in asked and host.get("Runtime") != asked["Runtime"]:
        yield f"Runtime is {host.get('Runtime')!r}, not {asked['Runtime']!r} (policy.runtime)"


def _compare_security(asked: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[str]:
    for key in ("CapDrop", "CapAdd"):
        found, wanted = _capabilities(host.get(key)), _capabilities(asked.get(key))
        if found != wanted:
            yield f"{key} is {found!r}, not {wanted!r}"
    yield from _compare_options(asked["SecurityOpt"], host.get("SecurityOpt") or [])


def _compare_options(asked: list[str], found: list[str]) -> Iterator[str]:
    wanted = [_parse_option(option) for option in asked]
    for option in found:
        parsed = _parse_option(option)
        if parsed in wanted:
            wanted.remove(parsed)
        elif not option.startswith("label=") or "disable" in option:  # an engine's own, on SELinux
            yield f"SecurityOpt holds {option[:_SHOWN]!r}"
    for name, _ in wanted:
        yield f"SecurityOpt is without the {name} that was asked for"


def _parse_option(option: str) -> tuple[str, Any]:
    """Name and value; a profile as what it says, since an engine may write it in another way."""
    if option == "no-new-privileges:true":  # the older way to write it
        option = "no-new-privileges"
    name, _, value = option.partition("=")
    try:
        return name, json.loads(value) if name == "seccomp" else value
    except ValueError:
        return name, value


def _capabilities(names: list[str] | None) -> list[str]:
    return sorted(name.upper().removeprefix("CAP_") for name in names or [])


def _compare_process(
    asked: Mapping[str, Any], image: ImageFacts, found: Mapping[str, Any]
) -> Iterator[str]:
    config = found["Config"]
    if found.get("Image") != image.id:
        yield f"the image is {found.get('Image')!r}, not {image.id!r}"
    if config.get("User") != asked["User"]:
        yield f"User is {config.get('User')!r}, not {asked['User']!r}"
    if found.get("AppArmorProfile") == "unconfined":
        yield "the AppArmor profile is 'unconfined'"
    yield from _compare_env(image, asked["Env"], config.get("Env") or [])
    labels: dict[str, str] = config.get("Labels") or {}
    for name, value in asked["Labels"].items():
        if labels.get(name) != value:
            yield f"label {name} is {labels.get(name)!r}"


def _compare_env(image: ImageFacts, asked: list[str], found: list[str]) -> Iterator[str]:
    # Names only: a value may be a secret.
    declared = {entry.partition("=")[0] for entry in asked}
    inherited = [e for e in image.env if e.partition("=")[0] not in declared]
    expected = {*asked, *inherited}
    for entry in sorted(set(found) ^ expected):
        yield f"the environment differs in {entry.partition('=')[0]}"


def _compare_mounts(asked: Mapping[str, Any], found: list[Mapping[str, Any]]) -> Iterator[str]:
    expected = {m["Target"]: (m["Source"], not m["ReadOnly"]) for m in asked["Mounts"]}
    for bind in asked.get("Binds", []):
        source, target, options = bind.rsplit(":", 2)
        expected[target] = (source, options.startswith("rw"))
    for mount in found:
        target = mount.get("Destination", "")
        if mount.get("Type") == "tmpfs" and target in asked["Tmpfs"]:
            continue
        wanted = expected.pop(target, None)
        if wanted is None or mount.get("Type") != "bind":
            yield f"something is mounted at {target} that the plan does not name"
        elif (mount.get("Source"), mount.get("RW")) != wanted:
            yield f"the mount at {target} is {mount.get('Source')!r}, RW {mount.get('RW')!r}"
    for target in expected:
        yield f"the mount at {target} is missing"
