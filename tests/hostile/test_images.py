"""Hostile images: what an image declares and holds gains it nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.hostile.arena import docker
from tests.hostile.test_closed import check_refused

if TYPE_CHECKING:
    from tests.hostile.arena import Arena

CAPABLE = (
    'cp $(readlink -f /usr/bin/python3) /capable && python3 -c "import os,struct;'
    "os.setxattr('/capable','security.capability',"
    "struct.pack('<5I',0x02000001,1<<13,0,0,0))\""
)
RAW = (
    "import socket\ntry: socket.socket(2,3,1); print('raw')\nexcept OSError as e: print(e.strerror)"
)


@pytest.mark.claim("power")
@pytest.mark.parametrize("mode", ["4755", "2755", "6755"])
def test_setuid_program_gains_nothing(arena: Arena, mode: str) -> None:
    with arena.open_image(script=f"cp /usr/bin/id /suid && chmod {mode} /suid") as image:
        with arena.hostile(tag="suid", image=image).open() as wire:
            said = wire.probe("insight.run", "/suid")
        with arena.open_exposed("--user=65532:65532", image=image) as exposed:
            twin = exposed.probe("insight.run", "/suid")
    assert "uid=65532" in said
    assert "(root)" not in said
    assert "(root)" in twin


@pytest.mark.claim("power")
def test_file_with_a_capability_gains_nothing(arena: Arena) -> None:
    with arena.open_image(script=CAPABLE) as image:
        with arena.hostile(tag="capable", image=image).open() as wire:
            said = wire.probe("insight.run", "/capable", "-c", RAW)
        with arena.open_exposed("--user=65532", image=image) as exposed:
            twin = exposed.probe("insight.run", "/capable", "-c", RAW)
    assert "Operation not permitted" in said
    assert twin == "raw"


@pytest.mark.claim("power")
def test_user_and_groups_of_the_image_do_not_count(arena: Arena) -> None:
    with arena.open_image("USER root", script="usermod -aG root,disk sandbox") as image:
        with arena.hostile(tag="user", image=image).open() as wire:
            identity = wire.probe("insight.identity")
        with arena.open_exposed("--user=sandbox", image=image) as exposed:
            twin = exposed.probe("insight.identity")
    assert identity["uids"] == [65532] * 3
    assert set(identity["groups"]) <= {65532}
    assert 0 in twin["groups"]


@pytest.mark.claim("files")
def test_volume_of_the_image_is_bounded_scratch_space(arena: Arena) -> None:
    with arena.open_image("VOLUME /data /opt/more") as image:
        settings = {"image": image, "policy": {"limits": {"scratch": "1MiB"}}}
        hostile = arena.hostile(tag="volume", **settings)
        with hostile.open() as wire:
            mounts = wire.probe("insight.mounts")
            filled = wire.probe("appetite.fill", "/data", 1 << 24)
            found = json.loads(docker("inspect", "-f", "{{json .Mounts}}", hostile.container()))
        hostile.wait_gone()
        with arena.open_exposed("--user=0", image=image) as exposed:
            twin = exposed.probe("appetite.fill", "/data", 1 << 24)
    assert {"nosuid", "nodev"} <= set(mounts["/data"]) & set(mounts["/opt/more"])
    assert filled["refused"] == "ENOSPC"
    assert filled["written"] <= 1 << 20
    assert [m for m in found if m.get("Type") == "volume"] == []
    assert twin["refused"] == ""


@pytest.mark.claim("closed")
@pytest.mark.parametrize("path", ["/proc/self", "/dev/x", "/sys/fs"])
def test_volume_in_the_kernels_folders_is_refused(arena: Arena, path: str) -> None:
    with arena.open_image(f"VOLUME {path}") as image:
        check_refused(arena.hostile(image=image), f"VOLUME '{path}'")


@pytest.mark.claim("closed")
@pytest.mark.parametrize("path", ["/proc/self/fd/8", "/proc/self/fd/7/../../..", "/sys/x"])
def test_working_directory_in_the_kernels_folders_is_refused(arena: Arena, path: str) -> None:
    with arena.open_image(f"WORKDIR {path}") as image:
        check_refused(arena.hostile(image=image), "working directory")


@pytest.mark.claim("power")
def test_healthcheck_entrypoint_onbuild_and_ports_have_no_effect(arena: Arena) -> None:
    changes = (
        "HEALTHCHECK --interval=1s CMD touch /tmp/healthcheck-ran",
        'ENTRYPOINT ["touch", "/tmp/entrypoint-ran"]',
        "ONBUILD RUN touch /onbuild-ran",
        "EXPOSE 8080 53/udp",
        "LABEL sandboxed-mcp.owner=somebody sandboxed-mcp.launch=mine",
    )
    with arena.open_image(*changes) as image:
        hostile = arena.hostile(tag="declares", image=image)
        with hostile.open() as wire:
            (found,) = json.loads(docker("inspect", hostile.container()))
            assert wire.probe("insight.list_folder", "/tmp") == []
    assert found["Config"]["Healthcheck"]["Test"] == ["NONE"]
    assert found["Config"]["Labels"]["sandboxed-mcp.owner"] != "somebody"
    assert found["Config"]["Labels"]["sandboxed-mcp.launch"] != "mine"
    ports: dict[str, object] = found["NetworkSettings"]["Ports"] or {}
    assert not any(ports.values())


@pytest.mark.claim("power")
def test_shadowed_interpreter_only_fools_the_sandbox(arena: Arena) -> None:
    script = "printf '#!/bin/sh\\necho shadowed >&2; exit 7\\n' > /usr/local/bin/python3"
    with arena.open_image(script=f"{script} && chmod 755 /usr/local/bin/python3") as image:
        hostile = arena.hostile(tag="shadow", image=image)
        with hostile.open(start=False) as wire:
            assert wire.wait(30) == 7
            assert "shadowed" in wire.stderr


@pytest.mark.claim("power", twin=True)
def test_harmless_image_runs(arena: Arena) -> None:
    with (
        arena.open_image("WORKDIR /srv", "ENV COLOUR=blue") as image,
        arena.hostile(tag="harmless", image=image).open() as wire,
    ):
        assert wire.probe("insight.identity")["cwd"] == "/srv"
