"""From settings to containers: every mount, limit, label and argument as a value.

`plan_sandbox` says what shall run, `render_create` gives the body of the engine's create
request, `render_plan` what a person reads after `--dry-run`, and `compare_plan` what the
engine made of it. Pure: this module never asks the engine, the clock or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sandboxed_mcp.config.policy import Limits, Policy, enforceable
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandboxed_mcp.config.resolved import ResolvedMount, ResolvedSecret, ResolvedServer

__all__ = [
    "HOME",
    "LABEL_LAUNCH",
    "LABEL_OWNER",
    "LABEL_SECRETS",
    "LABEL_SERVER",
    "SECRETS_TARGET",
    "ImageFacts",
    "LaunchIdentity",
    "SandboxPlan",
    "plan_sandbox",
    "render_create",
    "render_plan",
]

LABEL_LAUNCH = "sandboxed-mcp.launch"
LABEL_SERVER = "sandboxed-mcp.server"
LABEL_OWNER = "sandboxed-mcp.owner"
LABEL_SECRETS = "sandboxed-mcp.secrets"

HOME = "/tmp"  # noqa: S108 - the scratch tmpfs inside the container, not the host's
SECRETS_TARGET = "/run/secrets"
HOSTNAME = "sandbox"
NOFILE = 8192
SHM_BYTES = 16 * 1024 * 1024
SCRATCH_INODES = 65_536
OOM_SCORE_ADJ = 500
STOP_TIMEOUT_SECONDS = 2


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What the engine knows of an image.

    Attributes:
        reference: The name as configured.
        id: The content id (`sha256:...`); containers are created from it, not from the name.
        env: The image's own environment, in its order.
        volumes: Paths the image declares as `VOLUME`.
        workdir: The image's `WORKDIR`, or an empty string.
        entrypoint: The image's `ENTRYPOINT`.
        command: The image's `CMD`.
    """

    reference: str
    id: str
    env: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchIdentity:
    """Who starts what.

    Attributes:
        launch: 32 hexadecimal digits, new for every launch.
        owner: The launcher's process, as `host/boot/pid-namespace/pid/start`.
        secrets_dir: The folder that holds the secret files; None when there are none.
    """

    launch: str
    owner: str
    secrets_dir: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """One server's sandbox: a container with no network.

    Attributes:
        server: The configured name.
        image: The image as configured and its content id.
        entrypoint: Replaces the image's entrypoint; None keeps it.
        args: Replaces the image's command; None keeps it.
        env: The declared variables and the minimum, without secrets.
        secrets: The declared secrets; their values are hidden from `repr`.
        cwd: Working directory in the container; None keeps the image's.
        mounts: Host folders and files.
        volumes: Paths of the image's `VOLUME`s, covered by bounded scratch space.
        policy: What the server may use.
        labels: Labels of the container.
        secrets_dir: Host folder behind `/run/secrets`; None when no secret is a file.
        network: The engine's network mode.
    """

    server: str
    image: ImageFacts
    entrypoint: tuple[str, ...] | None
    args: tuple[str, ...] | None
    env: Mapping[str, str]
    secrets: tuple[ResolvedSecret, ...]
    cwd: str | None
    mounts: tuple[ResolvedMount, ...]
    volumes: tuple[str, ...]
    policy: Policy
    labels: Mapping[str, str]
    secrets_dir: str | None
    network: str = field(default="none")

    @property
    def launch(self) -> str:
        """The launch id."""
        return self.labels[LABEL_LAUNCH]

    @property
    def limits(self) -> Limits:
        """The policy's limits."""
        return self.policy.limits


def plan_sandbox(server: ResolvedServer, image: ImageFacts, who: LaunchIdentity) -> SandboxPlan:
    """The sandbox that the settings ask for.

    Args:
        server: Resolved settings.
        image: What the engine knows of `server.image`.
        who: The launch id and the launching process.

    Raises:
        ConfigError: The policy cannot be enforced, or the image asks for something unsafe.
    """
    reason = enforceable(server.policy)
    if reason is not None:
        raise ConfigError(
            f"servers.{server.name}.policy.egress",
            reason,
            'remove the rules to run the server offline, as policy = "offline" does',
            file=server.origin,
        )
    _refuse_workdir(server, image)
    return SandboxPlan(
        server=server.name,
        image=image,
        entrypoint=server.entrypoint,
        args=server.args,
        env={"HOME": HOME, "HOSTNAME": HOSTNAME, **server.env},
        secrets=server.secrets,
        cwd=server.cwd,
        mounts=server.mounts,
        volumes=_scratch_volumes(server, image),
        policy=server.policy,
        labels=_labels(server, who),
        secrets_dir=who.secrets_dir,
    )


def _labels(server: ResolvedServer, who: LaunchIdentity) -> dict[str, str]:
    return {
        LABEL_LAUNCH: who.launch,
        LABEL_SERVER: server.name,
        LABEL_OWNER: who.owner,
        LABEL_SECRETS: ",".join(s.name for s in server.secrets if s.delivery == "env"),
    }


def _scratch_volumes(server: ResolvedServer, image: ImageFacts) -> tuple[str, ...]:
    covered = {HOME, SECRETS_TARGET, *(mount.target for mount in server.mounts)}
    for path in image.volumes:
        if path != str(PurePosixPath(path)) or not path.startswith("/") or _is_system(path):
            raise _image_error(server, f"declares VOLUME '{path}', which the sandbox cannot bound")
    return tuple(path for path in sorted(image.volumes) if path not in covered)


def _refuse_workdir(server: ResolvedServer, image: ImageFacts) -> None:
    # A WORKDIR below /proc/self/fd is how CVE-2024-21626 leaves the container.
    path = server.cwd or image.workdir
    if path and (not path.startswith("/") or ".." in PurePosixPath(path).parts or _is_system(path)):
        raise _image_error(server, f"has the working directory '{path}'")


def _is_system(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return len(parts) < 2 or parts[1] in {"proc", "sys", "dev"}  # noqa: PLR2004


def _image_error(server: ResolvedServer, problem: str) -> ConfigError:
    return ConfigError(
        f"servers.{server.name}.image",
        f"image '{server.image}' {problem}",
        "use an image without it",
        file=server.origin,
    )


def render_create(plan: SandboxPlan) -> dict[str, Any]:
    """The body of `POST /containers/create` (Docker Engine API 1.41).

    Secrets delivered as variables are in `Env`: the one place where the engine holds them.
    """
    env = {**plan.env, **{s.name: s.value for s in plan.secrets if s.delivery == "env"}}
    return {
        "Image": plan.image.id,
        "Hostname": HOSTNAME,
        "User": plan.policy.user,
        "Env": [f"{name}={value}" for name, value in sorted(env.items())],
        **({"Entrypoint": list(plan.entrypoint)} if plan.entrypoint is not None else {}),
        **({"Cmd": list(plan.args)} if plan.args is not None else {}),
        **({"WorkingDir": plan.cwd} if plan.cwd is not None else {}),
        "Labels": dict(plan.labels),
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "StopSignal": "SIGTERM",
        "StopTimeout": STOP_TIMEOUT_SECONDS,
        "HostConfig": _host_config(plan),
    }


def _host_config(plan: SandboxPlan) -> dict[str, Any]:
    limits = plan.limits
    binds = [_render_bind(m) for m in plan.mounts if m.relabel is not None]
    return {
        "NetworkMode": plan.network,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "Init": True,
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "NanoCpus": round(limits.cpus * 1e9),
        "PidsLimit": limits.pids,
        "OomScoreAdj": OOM_SCORE_ADJ,
        "ShmSize": min(SHM_BYTES, limits.scratch),
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": NOFILE, "Hard": NOFILE},
        ],
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
    """The plan for a person to read: what the engine is asked, secrets named, not shown."""
    body = render_create(plan)
    names = {s.name for s in plan.secrets if s.delivery == "env"}
    body["Env"] = [
        f"{entry.partition('=')[0]}=[secret]" if entry.partition("=")[0] in names else entry
        for entry in body["Env"]
    ]
    return {
        "server": plan.server,
        "image": {"reference": plan.image.reference, "id": plan.image.id},
        "image_env": list(plan.image.env),
        "network": plan.network,
        "message_size": plan.limits.message_size,
        "start_timeout": plan.limits.start_timeout,
        "container": body,
    }
