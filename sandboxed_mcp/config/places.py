"""Places of the host that no mount may open, as lists; `sources` holds a source against them.

Pure data and comparisons of paths as text: nothing here looks at the file system.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BROAD",
    "CREDENTIALS",
    "CREDENTIAL_NAMES",
    "SOCKETS",
    "SYSTEM",
    "USER_SOCKETS",
    "at_or_below",
    "control_folders",
]

SYSTEM: Final = (
    "/proc",
    "/sys",
    "/dev",
    "/etc",
    "/boot",
    "/run",
    "/var/run",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/lib/modules",
)
"""Folders of the system: neither they, nor what is below, nor what holds them."""

BROAD: Final = (
    "/",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/home",
    "/Users",
    "/root",
    "/var",
    "/var/lib",
    "/var/tmp",  # noqa: S108 - refused, not used
    "/tmp",  # noqa: S108 - refused, not used
    "/opt",
    "/srv",
    "/mnt",
    "/media",
)
"""Folders that hold far more than one server's data; a folder below them is fine."""

CREDENTIALS: Final = (
    ".ssh",
    ".aws",
    ".azure",
    ".gnupg",
    ".kube",
    ".docker",
    ".config/gcloud",
    ".config/gh",
    ".config/op",
    ".config/containers",
    ".config/google-chrome",
    ".config/chromium",
    ".mozilla",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/docker",
    ".local/share/containers",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    ".vault-token",
    "Library/Keychains",
)
"""Below a home: what logs a person in elsewhere, and an engine's own data."""

CREDENTIAL_NAMES: Final = (".ssh", ".gnupg")
"""Names that mean credentials in whoever's home they are."""

SOCKETS: Final = (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
)
"""Where container engines listen."""

USER_SOCKETS: Final = (
    ".docker/run/docker.sock",
    ".docker/desktop/docker.sock",
    ".colima/docker.sock",
    ".colima/default/docker.sock",
    ".rd/docker.sock",
    ".orbstack/run/docker.sock",
    ".local/share/containers/podman/machine/podman.sock",
)
"""Where container engines listen, below a home."""


def control_folders(runtime: str | None, uid: int) -> tuple[str, ...]:
    """List the folders that may hold launchers' control sockets, the preferred one first.

    Args:
        runtime: `XDG_RUNTIME_DIR` (XDG Base Directory 0.8), if it is set.
        uid: The launching user.
    """
    places = [f"{runtime.rstrip('/')}/sandboxed-mcp"] if runtime and runtime[0] == "/" else []
    places += [f"/run/user/{uid}/sandboxed-mcp", f"/tmp/sandboxed-mcp-{uid}"]  # noqa: S108
    return tuple(dict.fromkeys(places))


def at_or_below(path: str, parent: str) -> bool:
    """Whether a normalised path is `parent` or lies below it."""
    return path == parent or path.startswith(parent.rstrip("/") + "/")
