from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandboxed_mcp.engine.images.lock import hold_lock
from sandboxed_mcp.engine.images.material import (
    parse_pip_config,
    read_build_material,
    read_proxy_arguments,
    render_pip_config,
)
from sandboxed_mcp.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from pathlib import Path

LISTING = """\
:env:.cert='/etc/company.pem'
global.cert='/etc/ssl/other.pem'
global.index-url='https://mirror.example/simple'
global.extra-index-url='file:///srv/wheels https://more.example/simple'
install.index-url='https://install.example/simple'
freeze.index-url='https://freeze.example/simple'
"""


def test_the_environment_wins_over_install_over_global() -> None:
    assert parse_pip_config(LISTING) == {
        "cert": "/etc/company.pem",
        "index-url": "https://install.example/simple",
        "extra-index-url": "file:///srv/wheels https://more.example/simple",
    }


def test_only_indexes_that_a_container_can_reach_are_passed_on() -> None:
    written = render_pip_config(parse_pip_config(LISTING), certificates=True).splitlines()

    assert "index-url = https://install.example/simple" in written
    assert "extra-index-url = https://more.example/simple" in written
    assert "cert = /build/ca.pem" in written
    assert "/srv/wheels" not in "\n".join(written)


def test_without_settings_pip_keeps_its_defaults() -> None:
    assert render_pip_config({}, certificates=False).splitlines() == [
        "[global]",
        "disable-pip-version-check = true",
    ]


def test_an_index_address_cannot_add_lines_to_the_configuration() -> None:
    hostile = {
        "index-url": "https://mirror.example/\x00x",
        "trusted-host": "a\nindex-url = http://b",
    }

    written = render_pip_config(hostile, certificates=False).splitlines()

    assert not any(line.startswith("index-url") for line in written)


def test_the_certificates_of_this_host_reach_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"certificates")
    monkeypatch.setenv("PIP_CERT", str(bundle))

    material = read_build_material()

    assert material[".build/ca.pem"] == b"certificates"
    assert b"cert = /build/ca.pem" in material[".build/pip.conf"]
    assert b"cafile=/build/ca.pem" in material[".build/npmrc"]


def test_a_bundle_that_cannot_be_read_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "nothing.pem"))

    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.pem: No such file"):
        read_build_material()


def test_proxy_settings_are_passed_on_in_both_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "localhost")

    assert read_proxy_arguments() == {
        "https_proxy": "http://proxy.example:3128",
        "NO_PROXY": "localhost",
    }


def test_a_second_build_of_a_name_waits_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    said: list[str] = []

    with (
        hold_lock("python", said.append),
        pytest.raises(EngineError, match=r"'python' did not end within 0\.3 s"),
        hold_lock("python", said.append, wait_seconds=0.3),
    ):
        pass

    assert said == ["waiting for another build of python"]


def test_builds_of_two_names_run_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    said: list[str] = []

    with hold_lock("python", said.append), hold_lock("node", said.append, wait_seconds=0):
        pass
    with hold_lock("python", said.append, wait_seconds=0):
        pass

    assert said == []
