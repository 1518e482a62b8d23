"""Index settings and certificates of this host, for use inside build stages.

Read from the package managers' own configuration when a build runs, so that a private mirror
or a TLS-inspecting proxy serves builds as it serves the host. Credentials in an index address
stay in the build stage (a file, not a build argument), so the finished image's history has
none. Never reads a setting that a container could not use, such as a `file:` index.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxed_mcp.engine.images.context import BUILD_FOLDER
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["parse_pip_config", "read_build_material", "read_proxy_arguments", "render_pip_config"]

_ASK_SECONDS = 20
_CERTIFICATES_IN_BUILD = "/build/ca.pem"
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")
_PIP_URLS = ("index-url", "extra-index-url", "proxy")
_PIP_SECTIONS = ("global", "install", ":env:")


def read_build_material() -> dict[str, bytes]:
    """Read what a build stage needs to reach the package indexes, as files of the context.

    Returns:
        `.build/pip.conf` and `.build/npmrc`, and `.build/ca.pem` where this host names a
        bundle of certificates. The first two point to `/build/ca.pem`.

    Raises:
        ConfigError: A certificate bundle is named but cannot be read.
    """
    pip = parse_pip_config(_ask(sys.executable, "-m", "pip", "config", "list"))
    npm_registry = _ask("npm", "config", "get", "registry").strip()
    certificates = _read_certificates(pip)
    files = {
        "pip.conf": render_pip_config(pip, certificates=certificates is not None),
        "npmrc": _render_npmrc(npm_registry, certificates=certificates is not None),
    }
    material = {f"{BUILD_FOLDER}/{name}": text.encode() for name, text in files.items()}
    if certificates is not None:
        material[f"{BUILD_FOLDER}/ca.pem"] = certificates
    return material


def read_proxy_arguments() -> dict[str, str]:
    """Read the proxy variables of this process as build arguments.

    The engine predefines these arguments: they reach each command of the build and are kept
    out of the image's history.
    """
    names = [spelled for name in _PROXY_VARIABLES for spelled in (name, name.upper())]
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def parse_pip_config(listing: str) -> dict[str, str]:
    """Parse the output of `pip config list`; the environment wins over `install` over `global`."""
    sections: dict[str, dict[str, str]] = {section: {} for section in _PIP_SECTIONS}
    for line in listing.splitlines():
        name, equals, quoted = line.partition("=")
        section, _, option = name.rpartition(".")
        if equals and section in sections:
            sections[section][option] = str(ast.literal_eval(quoted))
    return {option: value for found in sections.values() for option, value in found.items()}


def render_pip_config(pip: Mapping[str, str], *, certificates: bool) -> str:
    """Write the pip.conf of a build stage: indexes reachable from a container, and the CA."""
    lines = ["[global]", "disable-pip-version-check = true"]
    for option in _PIP_URLS:
        usable = [url for url in pip.get(option, "").split() if _is_http(url)]
        if usable:
            lines.append(f"{option} = {' '.join(usable)}")
    if pip.get("trusted-host"):
        lines.append(f"trusted-host = {' '.join(pip['trusted-host'].split())}")
    if certificates:
        lines.append(f"cert = {_CERTIFICATES_IN_BUILD}")
    return "\n".join(lines) + "\n"


def _render_npmrc(registry: str, *, certificates: bool) -> str:
    lines = ["update-notifier=false", "fund=false", "audit=false"]
    if _is_http(registry):
        lines.append(f"registry={registry}")
    if certificates:
        lines.append(f"cafile={_CERTIFICATES_IN_BUILD}")
    return "\n".join(lines) + "\n"


def _read_certificates(pip: Mapping[str, str]) -> bytes | None:
    named = [pip.get("cert"), *(os.environ.get(name) for name in _CERTIFICATE_VARIABLES)]
    path = next((name for name in named if name), None)
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            "certificates for builds",
            f"cannot read {path}: {error.strerror}",
            f"correct pip's `cert` setting or {_CERTIFICATE_VARIABLES[0]}",
        ) from error


def _is_http(url: str) -> bool:
    return url.startswith(("http://", "https://")) and url.isprintable() and " " not in url


def _ask(program: str, *arguments: str) -> str:
    """Ask a package manager; one that is not here or fails has no settings to pass on."""
    found = shutil.which(program)
    if found is None:
        return ""
    answer = subprocess.run(  # noqa: S603  # fixed arguments, no shell
        [found, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ASK_SECONDS,
        check=False,
    )
    return answer.stdout if answer.returncode == 0 else ""
