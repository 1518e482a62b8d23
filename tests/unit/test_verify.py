"""Every way in which an engine may not do what it was asked is found and named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sandboxed_mcp.engine.verify import compare_container, compare_status
from sandboxed_mcp.plan import ImageFacts

IMAGE = ImageFacts("example:1", "sha256:11", env=("PATH=/bin",))
ASKED: dict[str, Any] = {
    "Image": "sha256:11",
    "User": "65532:65532",
    "Env": ["HOME=/tmp", "TOKEN=s3cret-value"],
    "Labels": {"sandboxed-mcp.launch": "ab"},
    "HostConfig": {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "Privileged": False,
        "CgroupnsMode": "private",
        "IpcMode": "private",
        "AutoRemove": True,
        "Memory": 100,
        "MemorySwap": 100,
        "NanoCpus": 5,
        "PidsLimit": 7,
        "ShmSize": 9,
        "Tmpfs": {"/tmp": "size=1"},
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", 'seccomp={"defaultAction":"X","syscalls":[1,2]}'],
        "Mounts": [{"Type": "bind", "Source": "/a", "Target": "/data", "ReadOnly": True}],
    },
}
FOUND: dict[str, Any] = {
    "Image": "sha256:11",
    "Config": {
        "User": "65532:65532",
        "Env": ["HOME=/tmp", "TOKEN=s3cret-value", "PATH=/bin"],
        "Labels": {"sandboxed-mcp.launch": "ab", "org.example": "of the image"},
    },
    "HostConfig": {
        **{k: v for k, v in ASKED["HostConfig"].items() if k != "Mounts"},
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
    },
    "Mounts": [{"Type": "bind", "Source": "/a", "Destination": "/data", "RW": False}],
}
PROFILE = ASKED["HostConfig"]["SecurityOpt"][1]


def compare(**changes: Any) -> tuple[str, ...]:
    found = copy.deepcopy(FOUND)
    for path, value in changes.items():
        *sections, key = path.split("__")
        place = found
        for section in sections:
            place = place[section]
        place[key] = value
    return compare_container(ASKED, IMAGE, found)


def test_container_as_asked_has_no_difference() -> None:
    assert compare() == ()


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("HostConfig__NetworkMode", "bridge", "NetworkMode is 'bridge', not 'none'"),
        ("HostConfig__ReadonlyRootfs", False, "ReadonlyRootfs"),
        ("HostConfig__Privileged", True, "Privileged"),
        ("HostConfig__Memory", 0, "Memory is 0, not 100"),
        ("HostConfig__MemorySwap", -1, "MemorySwap is -1, not 100"),
        ("HostConfig__PidsLimit", None, "PidsLimit"),
        ("HostConfig__NanoCpus", 0, "NanoCpus"),
        ("HostConfig__IpcMode", "host", "IpcMode"),
        ("HostConfig__PidMode", "host", "PidMode is 'host', not empty"),
        ("HostConfig__UTSMode", "host", "UTSMode"),
        ("HostConfig__UsernsMode", "host", "UsernsMode"),
        ("HostConfig__CapDrop", [], "CapDrop is [], not ['ALL']"),
        ("HostConfig__CapAdd", ["CAP_NET_RAW"], "CapAdd is ['NET_RAW'], not []"),
        ("HostConfig__SecurityOpt", None, "without the no-new-privileges"),
        ("HostConfig__SecurityOpt", [PROFILE], "without the no-new-privileges"),
        ("HostConfig__SecurityOpt", ["no-new-privileges=false", PROFILE], "privileges=false'"),
        ("HostConfig__SecurityOpt", ["no-new-privileges"], "without the seccomp"),
        ("HostConfig__Devices", [{"PathOnHost": "/dev/kvm"}], "Devices"),
        ("HostConfig__ExtraHosts", ["a:1.2.3.4"], "ExtraHosts"),
        ("HostConfig__Sysctls", {"a": "b"}, "Sysctls"),
        ("HostConfig__VolumesFrom", ["x"], "VolumesFrom"),
        ("HostConfig__LogConfig", {"Type": "json-file"}, "LogConfig"),
        ("HostConfig__RestartPolicy", {"Name": "always"}, "RestartPolicy"),
        ("HostConfig__AutoRemove", False, "AutoRemove"),
        ("HostConfig__OomKillDisable", True, "OomKillDisable"),
        ("HostConfig__Tmpfs", {"/tmp": "size=2"}, "Tmpfs"),
        ("Config__User", "0:0", "User is '0:0'"),
        ("Image", "sha256:99", "the image is 'sha256:99'"),
        ("AppArmorProfile", "unconfined", "AppArmor"),
        ("Config__Labels", {}, "label sandboxed-mcp.launch is None"),
        ("Mounts", [], "the mount at /data is missing"),
    ],
)
def test_each_difference_is_named(path: str, value: Any, named: str) -> None:
    assert any(named in difference for difference in compare(**{path: value}))


@pytest.mark.parametrize(
    "option",
    [
        "seccomp=unconfined",
        "seccomp=",
        "seccomp=/etc/wide.json",
        'seccomp={"defaultAction":"X","syscalls":[2,1]}',
        'seccomp={"defaultAction":"X","syscalls":[1,2],"more":0}',
        "apparmor=unconfined",
        "apparmor=docker-default",
        "label=disable",
        "label:disable",
        "systempaths=unconfined",
        "unmask=ALL",
        PROFILE,
    ],
)
def test_option_that_was_not_asked_for_is_named(option: str) -> None:
    options = [*ASKED["HostConfig"]["SecurityOpt"], option]
    (difference,) = compare(HostConfig__SecurityOpt=options)
    assert difference == f"SecurityOpt holds {option!r}"


def test_profile_may_be_written_in_another_way_and_an_engine_may_label() -> None:
    profile = 'seccomp={ "syscalls": [1, 2], "defaultAction": "X" }'
    options = ["label=type:container_t", profile, "no-new-privileges:true"]
    assert compare(HostConfig__SecurityOpt=options) == ()


@pytest.mark.parametrize(
    ("mount", "named"),
    [
        ({"Type": "bind", "Source": "/b", "Destination": "/data", "RW": False}, "'/b'"),
        ({"Type": "bind", "Source": "/a", "Destination": "/data", "RW": True}, "RW True"),
        ({"Type": "volume", "Source": "/v", "Destination": "/data", "RW": False}, "at /data"),
        ({"Type": "bind", "Source": "/x", "Destination": "/other", "RW": False}, "at /other"),
    ],
)
def test_foreign_mount_is_named(mount: dict[str, Any], named: str) -> None:
    assert any(named in difference for difference in compare(Mounts=[mount]))


def test_variable_that_was_not_asked_for_is_named_without_its_value() -> None:
    env = [*FOUND["Config"]["Env"], "HTTP_PROXY=http://user:password@proxy"]
    (difference,) = compare(Config__Env=env)
    assert difference == "the environment differs in HTTP_PROXY"


def test_changed_secret_is_named_without_its_value() -> None:
    differences = compare(Config__Env=["HOME=/tmp", "TOKEN=other-value", "PATH=/bin"])
    assert set(differences) == {"the environment differs in TOKEN"}


STATUS = (
    "Name:\tpython3\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\n"
    "CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\n"
    "NoNewPrivs:\t1\nSeccomp:\t2\n"
)


def test_process_without_power_has_no_difference() -> None:
    assert compare_status(STATUS, net_admin=False) == ()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("CapEff:\t0000000000000000", "CapEff:\t0000000000002000", "CapEff 0000000000002000"),
        ("CapBnd:\t0000000000000000", "CapBnd:\t00000000a80425fb", "CapBnd"),
        ("CapBnd:\t0000000000000000\n", "", "CapBnd unknown"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0", "NoNewPrivs"),
        ("Seccomp:\t2", "Seccomp:\t0", "seccomp"),
        ("Seccomp:\t2\n", "", "seccomp"),
    ],
)
def test_power_of_a_process_is_named(old: str, new: str, named: str) -> None:
    differences = compare_status(STATUS.replace(old, new), net_admin=False)
    assert any(named in difference for difference in differences)


def test_gateway_may_have_net_admin_and_nothing_else() -> None:
    admin = STATUS.replace("0000000000000000", "0000000000001000")
    assert compare_status(admin, net_admin=True) == ()
    raw = STATUS.replace("0000000000000000", "0000000000003000")
    assert len(compare_status(raw, net_admin=True)) == 5
