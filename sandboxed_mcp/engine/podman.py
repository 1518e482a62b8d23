"""Podman, where it speaks differently from Docker: requests and reports, translated. Pure.

Containers are made through Podman's own create request, since its Docker-compatible one cannot
ask for a cgroup namespace, for no writable tmpfs at /run and /var/tmp, or for an environment
without additions. What Podman then reports is put into Docker's terms only where the meaning is
the same; everything else stays as it came, for the comparison with the plan to refuse.
Everything after creation goes by the Docker-compatible requests.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["LIBPOD", "find_seccomp", "read_container", "render_spec"]

LIBPOD: Final = "/v4.0.0/libpod"
"""Where Podman's own requests begin; Podman 4 and later."""

CPU_PERIOD: Final = 100_000
# Podman otherwise asks for 1048576, which an engine without CAP_SYS_RESOURCE cannot give. It is
# shared by all containers that run as one user; what binds each is its own limit of processes.
NPROC: Final = 16_384
_SECCOMP: Final = "seccomp="
# Podman sets these by itself. None of the launcher's doing, so none in the server.
_OWN_VARIABLES: Final = ("TERM", "container")


def find_seccomp(body: Mapping[str, Any]) -> str | None:
    """The text of the seccomp profile that a Docker body asks for."""
    options: list[str] = body["HostConfig"]["SecurityOpt"]
    found = [each.removeprefix(_SECCOMP) for each in options if each.startswith(_SECCOMP)]
    return found[0] if found else None


def render_spec(body: Mapping[str, Any], seccomp: str | None) -> dict[str, Any]:
    """The body of `POST /libpod/containers/create` that asks what a Docker body asks.

    Args:
        body: The body for Docker's create request.
        seccomp: Path of a file with its seccomp profile, read by Podman when it is asked; None
            for Podman's own profile.
    """
    host = body["HostConfig"]
    env = dict(entry.split("=", 1) for entry in body["Env"])
    return {
        "image": body["Image"],
        "user": body["User"],
        "env": env,
        "unsetenv": [name for name in _OWN_VARIABLES if name not in env],
        "httpproxy": False,
        "env_host": False,
        **_renamed(body, hostname="Hostname", entrypoint="Entrypoint", command="Cmd"),
        **_renamed(body, work_dir="WorkingDir"),
        "labels": body["Labels"],
        "stdin": body["OpenStdin"],
        "terminal": body["Tty"],
        "stop_signal": int(signal.Signals[body["StopSignal"]]),
        "stop_timeout": body["StopTimeout"],
        "healthconfig": body["Healthcheck"],
        "systemd": "false",
        "restart_policy": host["RestartPolicy"]["Name"],
        "log_configuration": {"driver": host["LogConfig"]["Type"]},
        "remove": host["AutoRemove"] and not _is_shared(host),
        "init": host["Init"],
        **_renamed(host, oci_runtime="Runtime"),
        **_render_security(host),
        **({"seccomp_profile_path": seccomp} if seccomp is not None else {}),
        **_render_limits(host),
        **_render_network(host),
        "image_volume_mode": "ignore",
        "mounts": [*_render_mounts(host)],
        "shm_size": host["ShmSize"],
    }


def _is_shared(host: Mapping[str, Any]) -> bool:
    """Whether it has a network, which another container may share.

    Podman would remove it by halves when it ends before the other, and then list nothing at all
    any more. It is removed by its launcher, after the other.
    """
    return host["NetworkMode"] == "bridge"


def _renamed(section: Mapping[str, Any], **names: str) -> dict[str, Any]:
    return {ours: section[theirs] for ours, theirs in names.items() if theirs in section}


def _render_security(host: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "privileged": host["Privileged"],
        "cap_drop": host["CapDrop"],
        "cap_add": host.get("CapAdd", []),
        "no_new_privileges": "no-new-privileges" in host["SecurityOpt"],
        "read_only_filesystem": host["ReadonlyRootfs"],
        "read_write_tmpfs": False,
        "cgroupns": {"nsmode": host["CgroupnsMode"]},
        "ipcns": {"nsmode": host["IpcMode"]},
        "pidns": {"nsmode": "private"},
        "utsns": {"nsmode": "private"},
        # One user namespace a pod: the gateway's rules belong to it.
        "userns": {"nsmode": "host"},
    }


def _render_limits(host: Mapping[str, Any]) -> dict[str, Any]:
    quota = host["NanoCpus"] * CPU_PERIOD // 10**9
    limits = [
        {"type": each["Name"], "soft": each["Soft"], "hard": each["Hard"]}
        for each in host["Ulimits"]
    ]
    return {
        "resource_limits": {
            "memory": {"limit": host["Memory"], "swap": host["MemorySwap"]},
            "cpu": {"period": CPU_PERIOD, "quota": quota},
            "pids": {"limit": host["PidsLimit"]},
        },
        "r_limits": [*limits, {"type": "nproc", "soft": NPROC, "hard": NPROC}],
        "oom_score_adj": host["OomScoreAdj"],
    }


def _render_network(host: Mapping[str, Any]) -> dict[str, Any]:
    mode, _, container = host["NetworkMode"].partition(":")
    return {
        "netns": {"nsmode": mode, **({"value": container} if container else {})},
        # Podman's own file begins with a copy of the engine host's.
        "use_image_hosts": True,
        **_renamed(host, dns_option="DnsOptions", dns_search="DnsSearch"),
    }


def _render_mounts(host: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for target, options in host["Tmpfs"].items():
        words = [word for word in options.split(",") if not word.startswith("nr_inodes=")]
        yield _mount("tmpfs", "tmpfs", target, *words, "notmpcopyup")
    for each in host["Mounts"]:
        way = "ro" if each["ReadOnly"] else "rw"
        yield _mount("bind", each["Source"], each["Target"], "bind", "rprivate", way)
    for bind in host.get("Binds", []):
        source, target, options = bind.rsplit(":", 2)
        yield _mount("bind", source, target, "rbind", "rprivate", *options.split(","))


def _mount(kind: str, source: str, target: str, *options: str) -> dict[str, Any]:
    return {"type": kind, "source": source, "destination": target, "options": list(options)}


def read_container(
    found: Mapping[str, Any], details: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Podman's report of a container, in Docker's terms where those mean the same.

    Args:
        found: The answer to Docker's `GET /containers/ID/json`.
        details: The answer to Podman's own `GET /libpod/containers/ID/json`.
        asked: The body for Docker's create request that the container was made from.
    """
    host = {**found["HostConfig"]}
    # Docker's answer is silent about these two.
    host["CgroupnsMode"] = details["HostConfig"].get("CgroupMode")
    host["Runtime"] = details.get("OCIRuntime")
    for key, theirs, ours in (
        # A namespace of its own, which others could join that named it: none of ours does.
        ("IpcMode", "shareable", "private"),
        ("PidMode", "private", ""),
        ("UTSMode", "private", ""),
    ):
        if host.get(key) == theirs:
            host[key] = ours
    if _is_shared(asked["HostConfig"]):
        host["AutoRemove"] = asked["HostConfig"]["AutoRemove"]
    host.update(_read_capabilities(details))
    options: list[str] = host.get("SecurityOpt") or []
    profile = find_seccomp(asked)
    if profile is not None and not any(each.startswith(_SECCOMP) for each in options):
        # Not reported in any form. Podman reads the file that it is given, or makes nothing.
        host["SecurityOpt"] = [*options, _SECCOMP + profile]
    tmpfs: Mapping[str, str] = host.get("Tmpfs") or {}
    host["Tmpfs"] = {
        target: _read_tmpfs(options, asked["HostConfig"]["Tmpfs"].get(target, ""))
        for target, options in tmpfs.items()
    }
    # Both engines set it; only this one says so.
    hostname = f"HOSTNAME={asked.get('Hostname')}"
    env = [each for each in found["Config"]["Env"] if each != hostname or each in asked["Env"]]
    return {**found, "HostConfig": host, "Config": {**found["Config"], "Env": env}}


def _read_capabilities(details: Mapping[str, Any]) -> dict[str, list[str]]:
    """All dropped but those it has; Docker's answer counts from the engine's own default."""
    keys = ("EffectiveCaps", "BoundingCaps")
    if not all(key in details for key in keys):
        return {}
    held = {name for key in keys for name in details[key] or ()}
    return {"CapDrop": ["ALL"], "CapAdd": sorted(held)}


def _read_tmpfs(options: str, asked: str) -> str:
    """Podman's words for what was asked, or its own options as they are.

    It adds the propagation, takes "notmpcopyup" away, and knows no limit of inodes: those of a
    tmpfs are kernel memory of the container, which its memory limit holds.
    """
    found = set(options.split(",")) - {"rprivate"}
    wanted = {word for word in asked.split(",") if not word.startswith("nr_inodes=")}
    return asked if found == wanted else options
