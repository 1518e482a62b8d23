"""What the engine made of a plan, compared with what was asked. Pure.

An engine may drop a limit that its kernel lacks, or add to what was asked by its own
configuration. Every difference is named; the caller stops at the first launch that has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandboxed_mcp.plan import SandboxPlan, render_create

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["compare_plan"]

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
    "CapAdd",
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


def compare_plan(plan: SandboxPlan, found: Mapping[str, Any]) -> tuple[str, ...]:
    """One sentence for each setting that differs.

    Args:
        plan: What was asked.
        found: The engine's answer to `GET /containers/ID/json` (Docker Engine API 1.41).
    """
    asked = render_create(plan)
    host = found["HostConfig"]
    return (
        *_compare_host(asked["HostConfig"], host),
        *_compare_security(host),
        *_compare_process(plan, asked, found),
        *_compare_mounts(plan, found.get("Mounts") or []),
    )


def _compare_host(asked: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[str]:
    for key in _EXACT:
        if host.get(key) != asked[key]:
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
        yield f"Runtime is {host.get('Runtime')!r}, not {asked['Runtime']!r}"


def _compare_security(host: Mapping[str, Any]) -> Iterator[str]:
    dropped: list[str] = host.get("CapDrop") or []
    if [name.upper() for name in dropped] != ["ALL"]:
        yield f"CapDrop is {host.get('CapDrop')!r}, not ['ALL']"
    options: list[str] = list(host.get("SecurityOpt") or [])
    if not {"no-new-privileges", "no-new-privileges:true"} & set(options):
        yield f"SecurityOpt is {options!r}, without no-new-privileges"
    for option in options:
        if "unconfined" in option or "disable" in option:
            yield f"SecurityOpt holds {option!r}"


def _compare_process(
    plan: SandboxPlan, asked: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[str]:
    config = found["Config"]
    if found.get("Image") != plan.image.id:
        yield f"the image is {found.get('Image')!r}, not {plan.image.id!r}"
    if config.get("User") != asked["User"]:
        yield f"User is {config.get('User')!r}, not {asked['User']!r}"
    if found.get("AppArmorProfile") == "unconfined":
        yield "the AppArmor profile is 'unconfined'"
    yield from _compare_env(plan, asked["Env"], config.get("Env") or [])
    labels: dict[str, str] = config.get("Labels") or {}
    for name, value in plan.labels.items():
        if labels.get(name) != value:
            yield f"label {name} is {labels.get(name)!r}"


def _compare_env(plan: SandboxPlan, asked: list[str], found: list[str]) -> Iterator[str]:
    # Names only: a value may be a secret.
    declared = {entry.partition("=")[0] for entry in asked}
    inherited = [e for e in plan.image.env if e.partition("=")[0] not in declared]
    expected = {*asked, *inherited}
    for entry in sorted(set(found) ^ expected):
        yield f"the environment differs in {entry.partition('=')[0]}"


def _compare_mounts(plan: SandboxPlan, found: list[Mapping[str, Any]]) -> Iterator[str]:
    expected = {m.target: (m.source, not m.read_only) for m in plan.mounts}
    if plan.secrets_dir is not None:
        expected["/run/secrets"] = (plan.secrets_dir, False)
    for mount in found:
        target = mount.get("Destination", "")
        if mount.get("Type") == "tmpfs" and target in {"/tmp", *plan.volumes}:  # noqa: S108
            continue
        wanted = expected.pop(target, None)
        if wanted is None or mount.get("Type") != "bind":
            yield f"something is mounted at {target} that the plan does not name"
        elif (mount.get("Source"), mount.get("RW")) != wanted:
            yield f"the mount at {target} is {mount.get('Source')!r}, RW {mount.get('RW')!r}"
    for target in expected:
        yield f"the mount at {target} is missing"
