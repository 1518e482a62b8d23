"""What a launch asks of the engine, as values: nothing runs here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandboxed_mcp.config.policy import Policy
from sandboxed_mcp.config.resolved import ResolvedMount, ResolvedSecret, ResolvedServer
from sandboxed_mcp.errors import ConfigError
from sandboxed_mcp.plan import (
    ImageFacts,
    LaunchIdentity,
    SandboxPlan,
    plan_sandbox,
    render_create,
    render_gateway,
    render_plan,
)
from sandboxed_mcp.plan.seccomp import name_seccomp, render_seccomp_text

MIB = 1 << 20
PROFILE = render_seccomp_text(net_admin=False)
WHO = LaunchIdentity("ab" * 16, "machine/boot/namespace/1/2")
IMAGE = ImageFacts("example:1", "sha256:11", env=("PATH=/bin",))
GATEWAY = ImageFacts("sandboxed-mcp/gateway:latest", "sha256:22")


def make_policy(**settings: Any) -> Policy:
    return Policy(**settings)


def make_plan(
    image: ImageFacts = IMAGE,
    *,
    policy: Policy | None = None,
    gateway: ImageFacts | None = None,
    observe: bool = False,
    who: LaunchIdentity = WHO,
    **settings: Any,
) -> SandboxPlan:
    server = ResolvedServer(
        name="notes", image=image.reference, policy=policy or Policy(), **settings
    )
    return plan_sandbox(server, image, who, gateway=gateway, observe=observe)


def test_container_has_no_network_no_power_and_bounds_on_everything() -> None:
    host = render_create(make_plan())["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert "CapAdd" not in host
    assert host["SecurityOpt"] == ["no-new-privileges", f"seccomp={PROFILE}"]
    assert host["ReadonlyRootfs"] is True
    assert host["Privileged"] is False
    assert host["IpcMode"] == host["CgroupnsMode"] == "private"
    assert host["Memory"] == host["MemorySwap"] == 512 * MIB
    assert host["PidsLimit"] == 128
    assert host["NanoCpus"] == 10**9
    assert host["LogConfig"] == {"Type": "none"}
    assert host["AutoRemove"] is True
    assert host["RestartPolicy"] == {"Name": "no"}
    assert {"Name": "core", "Soft": 0, "Hard": 0} in host["Ulimits"]
    assert "nosuid,nodev" in host["Tmpfs"]["/tmp"]
    assert f"size={64 * MIB}" in host["Tmpfs"]["/tmp"]


def test_container_is_made_from_the_image_id_not_from_a_name_that_may_move() -> None:
    assert render_create(make_plan())["Image"] == "sha256:11"


def test_environment_is_the_declared_one_and_the_minimum() -> None:
    body = render_create(make_plan(env={"LANG": "C"}))
    assert body["Env"] == ["HOME=/tmp", "HOSTNAME=sandbox", "LANG=C"]


def test_secret_variable_is_in_the_environment_and_nowhere_else() -> None:
    secret = ResolvedSecret("TOKEN", "s3cret-value", "env")
    plan = make_plan(secrets=(secret,))
    body = render_create(plan)
    assert "TOKEN=s3cret-value" in body.pop("Env")
    assert "s3cret-value" not in json.dumps(body)
    assert "s3cret-value" not in json.dumps(render_plan(plan))
    assert "TOKEN=[secret]" in render_plan(plan)["container"]["Env"]
    assert "s3cret-value" not in repr(plan)


def test_secret_file_is_mounted_read_only_and_not_in_the_environment() -> None:
    secret = ResolvedSecret("TOKEN", "s3cret-value", "file")
    who = LaunchIdentity(WHO.launch, WHO.owner, secrets_dir="/run/user/0/x/files")
    body = render_create(make_plan(secrets=(secret,), who=who))
    assert "s3cret-value" not in json.dumps(body)
    (mount,) = body["HostConfig"]["Mounts"]
    assert (mount["Source"], mount["Target"]) == ("/run/user/0/x/files", "/run/secrets")
    assert mount["ReadOnly"] is True


def test_mount_is_not_recursive_and_not_created() -> None:
    mount = ResolvedMount("/data/real", "/data", read_only=True, relabel=None, written="data")
    (bind,) = render_create(make_plan(mounts=(mount,)))["HostConfig"]["Mounts"]
    assert bind == {
        "Type": "bind",
        "Source": "/data/real",
        "Target": "/data",
        "ReadOnly": True,
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }


@pytest.mark.parametrize(("relabel", "letter"), [("shared", "z"), ("private", "Z")])
def test_relabelling_is_asked_for_one_mount_only(relabel: Any, letter: str) -> None:
    plain = ResolvedMount("/a", "/a", read_only=True, relabel=None, written="a")
    relabelled = ResolvedMount("/b", "/b", read_only=False, relabel=relabel, written="b")
    host = render_create(make_plan(mounts=(plain, relabelled)))["HostConfig"]
    assert host["Binds"] == [f"/b:/b:rw,{letter}"]
    assert [mount["Target"] for mount in host["Mounts"]] == ["/a"]


def test_volume_of_the_image_becomes_bounded_scratch_space() -> None:
    image = ImageFacts("example:1", "sha256:11", volumes=("/var/lib/data", "/tmp"))
    host = render_create(make_plan(image))["HostConfig"]
    assert sorted(host["Tmpfs"]) == ["/tmp", "/var/lib/data"]


@pytest.mark.parametrize("path", ["/proc/self", "/", "relative", "/a/../proc", "/dev/shm/x"])
def test_volume_that_cannot_be_bounded_is_refused(path: str) -> None:
    image = ImageFacts("example:1", "sha256:11", volumes=(path,))
    with pytest.raises(ConfigError, match="declares VOLUME"):
        make_plan(image)


@pytest.mark.parametrize("path", ["/proc/self/fd/8", "/sys", "a", "/x/../proc", "//proc/1"])
def test_working_directory_that_leads_out_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="working directory"):
        make_plan(ImageFacts("example:1", "sha256:11", workdir=path))


@pytest.mark.parametrize("path", ["", "/", "/srv/app"])
def test_ordinary_working_directory_is_kept(path: str) -> None:
    body = render_create(make_plan(ImageFacts("example:1", "sha256:11", workdir=path)))
    assert "WorkingDir" not in body


def test_server_of_a_pod_shares_the_gateways_network_and_has_no_name_of_its_own() -> None:
    plan = make_plan(policy=make_policy(egress=["api.example.com"]), gateway=GATEWAY)
    body = render_create(plan, "f00d")
    assert body["HostConfig"]["NetworkMode"] == "container:f00d"
    assert "Hostname" not in body
    assert "CapAdd" not in body["HostConfig"]
    assert plan.network == "rules"


def test_gateway_has_one_capability_a_read_only_root_and_no_environment() -> None:
    policy = make_policy(egress=["api.example.com"], dns=["198.51.100.53"])
    plan = make_plan(policy=policy, gateway=GATEWAY)
    assert plan.gateway is not None
    body = render_gateway(plan.gateway)
    host = body["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == ["NET_ADMIN"]
    profile = render_seccomp_text(net_admin=True)
    assert host["SecurityOpt"] == ["no-new-privileges", f"seccomp={profile}"]
    assert host["ReadonlyRootfs"] is True
    assert host["NetworkMode"] == "bridge"
    assert body["Env"] == []
    assert body["Labels"]["sandboxed-mcp.role"] == "gateway"
    assert plan.gateway.control == {
        "control": "policy",
        "generation": 1,
        "mode": "enforce",
        "egress": ["api.example.com:443"],
        "dns": ["198.51.100.53"],
        "forbidden": [],
    }


def test_address_of_the_host_is_shut_unless_a_rule_spells_it_out() -> None:
    own = ("198.51.100.1", "198.51.100.2", "2001:db8::1")
    policy = make_policy(egress=["198.51.100.2:5432/tcp", "198.51.100.0/24:443/tcp"])
    server = ResolvedServer(name="notes", image="example:1", policy=policy)
    who = LaunchIdentity(WHO.launch, WHO.owner, host_addresses=own)
    plan = plan_sandbox(server, IMAGE, who, gateway=GATEWAY)
    assert plan.gateway is not None
    assert plan.gateway.control["forbidden"] == ["198.51.100.1", "2001:db8::1"]


@pytest.mark.parametrize(
    ("egress", "observe", "network"),
    [
        (["a.example.com"], False, "rules"),
        ("unrestricted", False, "unrestricted"),
        ("unrestricted", True, "observed"),
        ([], True, "observed"),
    ],
)
def test_plan_says_what_the_server_can_reach(egress: Any, observe: bool, network: str) -> None:
    plan = make_plan(policy=make_policy(egress=egress), gateway=GATEWAY, observe=observe)
    assert plan.network == render_plan(plan)["network"] == network


def test_profile_is_shown_by_its_name() -> None:
    shown = render_plan(make_plan(policy=make_policy(egress=["a.example.com"]), gateway=GATEWAY))
    for role, net_admin in (("container", False), ("gateway", True)):
        options = shown[role]["HostConfig"]["SecurityOpt"]
        assert options == ["no-new-privileges", f"seccomp={name_seccomp(net_admin=net_admin)}"]
