"""The plan as the engine's create requests (Docker Engine API 1.41), and for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sandboxed_mcp.plan.seccomp import name_seccomp, render_seccomp_text
from sandboxed_mcp.plan.values import HOME, SECRETS_TARGET, GatewayPlan, SandboxPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.policy import Limits
    from sandboxed_mcp.config.resolved import ResolvedMount

__all__ = ["render_create", "render_gateway", "render_plan"]

MIB: Final = 1024 * 1024
HOSTNAME: Final = "sandbox"
NOFILE: Final = 8192
SHM_BYTES: Final = 16 * MIB
SCRATCH_INODES: Final = 65_536
OOM_SCORE_ADJ: Final = 500
STOP_TIMEOUT_SECONDS: Final = 2
GATEWAY_MEMORY_BYTES: Final = 128 * MIB
GATEWAY_PIDS: Final = 64
GATEWAY_COMMAND: Final = ("python3", "-I", "-m", "sandboxed_mcp.gateway")


def render_create(plan: SandboxPlan, gateway: str | None = None) -> dict[str, Any]:
    """The body of `POST /containers/create` for the server.

    Secrets delivered as variables are in `Env`: the one place where the engine holds them.

    Args:
        plan: The plan.
        gateway: Container id of the gateway; None for an offline sandbox.
    """
    env = {**plan.env, **{s.name: s.value for s in plan.secrets if s.delivery == "env"}}
    return {
        **_attached(plan.labels),
        # In a pod the name is the gateway's, as the network namespace is.
        **({"Hostname": HOSTNAME} if gateway is None else {}),
        "Image": plan.image.id,
        "User": plan.policy.user,
        "Env": [f"{name}={value}" for name, value in sorted(env.items())],
        **({"Entrypoint": list(plan.entrypoint)} if plan.entrypoint is not None else {}),
        **({"Cmd": list(plan.args)} if plan.args is not None else {}),
        **({"WorkingDir": plan.cwd} if plan.cwd is not None else {}),
        "HostConfig": _server_host(plan, "none" if gateway is None else f"container:{gateway}"),
    }


def render_gateway(gateway: GatewayPlan) -> dict[str, Any]:
    """The body of `POST /containers/create` for the gateway."""
    return {
        **_attached(gateway.labels),
        "Hostname": HOSTNAME,
        "Image": gateway.image.id,
        "User": "0:0",
        "Env": [],
        "Entrypoint": list(GATEWAY_COMMAND),
        "Cmd": [],
        "WorkingDir": "/",
        "HostConfig": {
            **_hardened(GATEWAY_MEMORY_BYTES, GATEWAY_PIDS),
            "SecurityOpt": _security_options(net_admin=True),
            "NetworkMode": "bridge",
            "CapAdd": ["NET_ADMIN"],
            # One question a name, as it was asked: no search list, no suffixes.
            "DnsOptions": ["ndots:1"],
            "DnsSearch": ["."],
            "NanoCpus": 10**9,
            "ShmSize": MIB,
            "Tmpfs": {},
            "Mounts": [],
        },
    }


def _attached(labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_TIMEOUT_SECONDS,
    }


def _hardened(memory: int, pids: int) -> dict[str, Any]:
    """What every container of ours has in common."""
    return {
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "Privileged": False,
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "Init": True,
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": pids,
        "OomScoreAdj": OOM_SCORE_ADJ,
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": NOFILE, "Hard": NOFILE},
        ],
    }


def _security_options(*, net_admin: bool) -> list[str]:
    # The profile itself, not a path: the engine may be on another machine.
    return ["no-new-privileges", f"seccomp={render_seccomp_text(net_admin=net_admin)}"]


def _server_host(plan: SandboxPlan, network: str) -> dict[str, Any]:
    limits = plan.limits
    binds = [_render_bind(m) for m in plan.mounts if m.relabel is not None]
    return {
        **_hardened(limits.memory, limits.pids),
        "SecurityOpt": _security_options(net_admin=False),
        "NetworkMode": network,
        "NanoCpus": round(limits.cpus * 1e9),
        "ShmSize": min(SHM_BYTES, limits.scratch),
        "Tmpfs": {path: _scratch_options(limits) for path in (HOME, *plan.volumes)},
        "Mounts": _render_mounts(plan),
        **({"Binds": binds} if binds else {}),
        **({"Runtime": plan.policy.runtime} if plan.policy.runtime else {}),
    }


def _scratch_options(limits: Limits) -> str:
    return f"rw,nosuid,nodev,size={limits.scratch},nr_inodes={SCRATCH_INODES},mode=1777"


def _render_mounts(plan: SandboxPlan) -> list[dict[str, Any]]:
    mounts = [(m.source, m.target, m.read_only) for m in plan.mounts if m.relabel is None]
    if plan.secrets_dir is not None:
        mounts.append((plan.secrets_dir, SECRETS_TARGET, True))
    return [
        {
            "Type": "bind",
            "Source": source,
            "Target": target,
            "ReadOnly": read_only,
            # A read-only bind does not make mounts below its source read-only.
            "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
        }
        for source, target, read_only in mounts
    ]


def _render_bind(mount: ResolvedMount) -> str:
    # Only this older form can ask for SELinux relabelling.
    relabel = {"shared": "z", "private": "Z"}[mount.relabel or "shared"]
    return f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'},{relabel}"


def render_plan(plan: SandboxPlan) -> dict[str, Any]:
    """The plan for a person to read: what the engine is asked, secrets named, not shown.

    Each seccomp profile is shown by its name and SHA-256.
    """
    body = render_create(plan, None if plan.gateway is None else "(the gateway's id)")
    names = {s.name for s in plan.secrets if s.delivery == "env"}
    body["Env"] = [
        f"{entry.partition('=')[0]}=[secret]" if entry.partition("=")[0] in names else entry
        for entry in body["Env"]
    ]
    _name_profile(body, net_admin=False)
    shown: dict[str, Any] = {
        "server": plan.server,
        "image": {"reference": plan.image.reference, "id": plan.image.id},
        "image_env": list(plan.image.env),
        "network": plan.network,
        "message_size": plan.limits.message_size,
        "start_timeout": plan.limits.start_timeout,
        "container": body,
    }
    if plan.gateway is not None:
        shown["gateway"] = render_gateway(plan.gateway)
        _name_profile(shown["gateway"], net_admin=True)
        shown["policy"] = dict(plan.gateway.control)
    return shown


def _name_profile(body: dict[str, Any], *, net_admin: bool) -> None:
    """Puts the profile's name in the place of its text."""
    options: list[str] = body["HostConfig"]["SecurityOpt"]
    text, name = render_seccomp_text(net_admin=net_admin), name_seccomp(net_admin=net_admin)
    body["HostConfig"]["SecurityOpt"] = [option.replace(text, name) for option in options]
