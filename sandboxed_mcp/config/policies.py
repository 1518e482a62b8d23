"""Finding and reading a policy: by name in a `policies` folder, by path, or inline.

The folders are `policies` beside the configuration file and the one of this package. A name
that both hold is refused: neither may silently stand in for the other.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandboxed_mcp.config.files import read_document
from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.problems import RefusedError, Section, parse_table, shown

if TYPE_CHECKING:
    from sandboxed_mcp.config.sources import Host

__all__ = ["find_policy", "load_policy", "packaged_policies"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")


def load_policy(path: Path) -> Policy:
    """Read a policy file: TOML with the keys `egress`, `limits`, `user` and `runtime`.

    Raises:
        ConfigError: It cannot be read, or a setting is refused; a line for each.
    """
    return parse_table(Policy, read_document(path), Section(str(path)))


def find_policy(written: str, base_dir: Path, host: Host) -> Path:
    """Find the file that a policy's name or path stands for.

    Args:
        written: A name, or a path: it has a `/` or ends in `.toml`.
        base_dir: The folder that relative paths and a local `policies` folder are in.
        host: For `~`.

    Raises:
        RefusedError: There is no such policy, or there are two.
    """
    if "/" in written or written.endswith(".toml"):
        path = host.expand(written, base_dir)
        if not _is_file(path):
            raise RefusedError(f"the file {shown(str(path))} is not there", "correct the path")
        return path
    if not _NAME.match(written):
        raise RefusedError(
            f"{shown(written)} is not a policy's name",
            "use letters, digits, '_', '.' and '-', or write a path to a .toml file",
        )
    return _find_named(written, base_dir)


def packaged_policies() -> Path:
    """The `policies` folder of this package: in a wheel, else in the checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_policies"
    return installed if installed.is_dir() else package.parent / "policies"


def _find_named(name: str, base_dir: Path) -> Path:
    folders = dict.fromkeys([packaged_policies(), base_dir / "policies"])
    found = [folder / f"{name}.toml" for folder in folders]
    found = [path for path in found if _is_file(path)]
    if not found:
        known = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
        raise RefusedError(
            f"there is no policy {shown(name)} in {' or '.join(map(shown, map(str, folders)))}",
            f"write one of {', '.join(known)}, or a path to a .toml file",
        )
    if len(found) > 1 and not found[0].samefile(found[1]):
        raise RefusedError(
            f"the policy {shown(name)} is in '{found[1]}' and comes with this package as well",
            "rename yours, or write its path",
        )
    return found[0]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, a folder closed to us
        return False
