"""Promise *tls*: on a verified rule the TLS server name must be one the rule names.

The relay dials only after it has seen the name, so of what is refused not even a SYN leaves.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.hostile.egress.world import API, DB, STRANGER, WEB
from tests.lab.hello import extension, hello, real_hello, records, server_name

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.hostile.egress.pods import Exposed, Launchpad, Pod
    from tests.hostile.egress.world import World

pytestmark = [pytest.mark.claim("tls"), pytest.mark.timeout(420)]

ALERT = "15"
ENDED = {"ECONNRESET", "EOFError", "EPIPE"}
GOOD = b"api.example.com"


@pytest.fixture(autouse=True)
def looked_up(world: World, pod: Pod) -> None:
    """The addresses are open: what is refused is refused for its name alone."""
    del world
    for name in ("api.example.com", "web.example.com", "a.wild.example.com"):
        assert pod.do("names.lookup", name=name).error is None


@contextlib.contextmanager
def nothing_is_dialled(world: World, pod: Pod) -> Generator[None, None, None]:
    """What is done meanwhile sends nothing to either TLS server."""
    connections = world.tls.connections
    with world.nothing_leaves(pod):
        yield
    for address in (API, WEB):
        assert pod.wire.packets(address) == []
        assert world.bridge.wire.packets(address) == []
    assert world.tls.connections == connections


def speak(pod: Pod | Exposed, *pieces: bytes, address: str = API) -> str:
    """The first bytes that come back, or the error's name."""
    hexes = [piece.hex() for piece in pieces]
    outcome = pod.do("web.speak", address=address, port=443, pieces=hexes)
    return outcome.error or outcome.text


def split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.claim("tls", twin=True)
def test_the_named_server_is_reached(world: World, pod: Pod) -> None:
    assert pod.do("web.say", address=API, name="api.example.com").text == "hello"
    assert world.tls.names[-1] == "api.example.com"
    pod.wait_event("connect", name="api.example.com", address=API, port=443)


@pytest.mark.claim("tls", twin=True)
def test_a_server_below_a_wildcard_is_reached(world: World, pod: Pod) -> None:
    assert pod.do("web.say", address=API, name="a.wild.example.com").text == "hello"
    assert pod.do("names.lookup", name="wild.example.com").error == "EAI_NONAME"
    with nothing_is_dialled(world, pod):
        assert speak(pod, real_hello("wild.example.com")).startswith(ALERT)


HELLOS = {
    "no_name": real_hello(None),
    "a_foreign_name": real_hello("evil.example.net"),
    "another_name_of_the_same_address": real_hello("other.example.com"),
    "a_name_of_another_rule_and_address": real_hello("web.example.com"),
    "the_parent": real_hello("example.com"),
    "a_name_below": real_hello("x.api.example.com"),
    "a_longer_name": real_hello("api.example.com.evil.example.net"),
    "a_name_that_ends_alike": real_hello("evilapi.example.com"),
    "a_name_not_looked_up": real_hello("zz.wild.example.com"),
    "a_name_with_a_nul": records(hello(server_name(GOOD + b"\0.evil.example.net"))),
    "a_name_with_a_space": records(hello(server_name(GOOD + b" "))),
    "two_trailing_dots": records(hello(server_name(GOOD + b".."))),
    "an_empty_name": records(hello(server_name(b""))),
    "an_address_as_name": records(hello(server_name(API.encode()))),
    "two_names": records(hello(server_name(b"evil.example.net", GOOD))),
    "two_names_the_good_one_first": records(hello(server_name(GOOD, b"evil.example.net"))),
    "two_extensions": records(hello(server_name(GOOD), server_name(b"evil.example.net"))),
    "a_name_of_another_kind": records(hello(server_name(GOOD, kind=7))),
    "a_unicode_name": records(hello(server_name("äpi.example.com".encode()))),
    "no_extensions": records(hello(without_extensions=True)),
    "bytes_behind_the_hello": records(hello(server_name(GOOD), behind=b"more")),
    "an_encrypted_hello_under_a_foreign_name": records(
        hello(server_name(b"evil.example.net"), extension(0xFE0D, b"\0" * 64))
    ),
    "an_encrypted_hello_without_a_name": records(hello(extension(0xFE0D, b"\0" * 64))),
    "old_tls_without_a_name": real_hello(None),
    "an_alert": b"\x15\3\3\0\2\2\x28",
    "another_handshake_message": records(b"\2" + hello(server_name(GOOD))[1:]),
    "an_empty_record": b"\x16\3\1\0\0" + real_hello("api.example.com"),
    "an_enormous_record": b"\x16\3\1\xff\xff" + b"\0" * 64,
    "a_hello_of_20_kib": records(hello(server_name(GOOD), extension(21, b"\0" * 20_000)), 4096),
}
PLAIN = {
    "http": b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
    "http_2_without_tls": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an_ssh_banner": b"SSH-2.0-OpenSSH_9.9\r\n",
    "an_sslv2_hello": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"\0" * 64,
    "zeroes": b"\0" * 512,
    "a_proxy_request": b"CONNECT evil.example.net:443 HTTP/1.1\r\n\r\n",
    "a_proxy_protocol_line": b"PROXY TCP4 198.51.100.66 198.51.100.20 1 443\r\n"
    + real_hello("evil.example.net"),
    "socks": b"\5\1\0",
}


@pytest.mark.parametrize("data", HELLOS.values(), ids=HELLOS)
def test_hello_is_refused(world: World, pod: Pod, data: bytes) -> None:
    with nothing_is_dialled(world, pod):
        assert speak(pod, data).startswith(ALERT) or speak(pod, data) in ENDED
        assert speak(pod, *split(data, 200)).startswith(ALERT) or speak(pod, data) in ENDED


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_what_is_not_tls_is_refused(world: World, pod: Pod, exposed: Exposed, data: bytes) -> None:
    with nothing_is_dialled(world, pod):
        assert speak(pod, data) in ENDED
    connections = world.tls.connections
    speak(exposed, data)
    assert world.tls.connections == connections + 1


GOOD_HELLOS = {
    "as_it_is": (real_hello("api.example.com"),),
    "mixed_case": (real_hello("aPi.ExAmPlE.cOm"),),
    "a_trailing_dot": (records(hello(server_name(GOOD + b"."))),),
    "byte_by_byte": tuple(split(real_hello("api.example.com"), 1)),
    "tiny_records": (records(hello(server_name(GOOD)), 5),),
    "tiny_records_byte_by_byte": tuple(split(records(hello(server_name(GOOD)), 3), 1)),
    "a_hello_of_12_kib": tuple(
        split(records(hello(server_name(GOOD), extension(21, b"\0" * 12_000)), 4096), 1000)
    ),
    "an_encrypted_hello_under_the_named_outer_name": (
        records(hello(server_name(GOOD), extension(0xFE0D, b"\0" * 64))),
    ),
    "the_name_last": (records(hello(extension(21, b"\0" * 300), server_name(GOOD))),),
}


@pytest.mark.parametrize("pieces", GOOD_HELLOS.values(), ids=GOOD_HELLOS)
@pytest.mark.claim("tls", twin=True)
def test_hello_that_names_the_server_goes_on(
    world: World, pod: Pod, pieces: tuple[bytes, ...]
) -> None:
    connections = world.tls.connections
    speak(pod, *pieces)  # the server may dislike it; that is for the server to say
    world.bridge.wire.wait(API, "tcp", 443)
    assert world.tls.connections == connections + 1


@pytest.mark.parametrize("name", ["evil.example.net", "other.example.com"])
def test_a_foreign_name_split_over_many_segments_is_refused(
    world: World, pod: Pod, name: str
) -> None:
    with nothing_is_dialled(world, pod):
        assert speak(pod, *split(real_hello(name), 1)).startswith(ALERT)
        assert speak(pod, *split(records(hello(server_name(name.encode())), 3), 1)).startswith(
            ALERT
        )


def test_an_encrypted_hello_is_told_of(pod: Pod) -> None:
    speak(pod, records(hello(server_name(GOOD), extension(0xFE0D, b"\0" * 64))))
    pod.wait_event("connect", name="api.example.com", ech=True)


def test_half_a_hello_is_not_waited_for_and_goes_nowhere(world: World, pod: Pod) -> None:
    data = real_hello("api.example.com")
    with nothing_is_dialled(world, pod):
        outcome = pod.do("web.speak", address=API, port=443, pieces=[data[:-1].hex()], timeout=8.0)
        assert outcome.error in ENDED
        # The name itself is complete; half a message is no message.
        outcome = pod.do("web.speak", address=API, port=443, pieces=[data[:-1].hex()], rest=False)
        assert (outcome.error or outcome.text[:2]) in {*ENDED, ALERT}
    pod.wait_event(layer="tls", reason="client hello did not arrive")


def test_a_foreign_name_is_recorded(pod: Pod) -> None:
    speak(pod, real_hello("evil.example.net"))
    event = pod.wait_event(layer="tls", name="evil.example.net", address=API, port=443)
    assert "no rule" in event["reason"]


def test_a_verified_address_is_shut_on_every_other_port(world: World, pod: Pod, wide: Pod) -> None:
    with world.nothing_leaves(pod):
        assert pod.exchange("udp", API, 443).error in {"EPERM", "EACCES", "ECONNREFUSED"}
        assert pod.exchange("tcp", API, 5432).error == "ECONNREFUSED"
        assert pod.do("web.say", address=API, name="api.example.com", port=5432).error is not None
    assert wide.exchange("udp", API, 443).text == "echo hello"
    assert wide.exchange("tcp", API, 5432).text == "echo hello"


def test_the_relay_cannot_be_spoken_to_directly(world: World, pod: Pod) -> None:
    with nothing_is_dialled(world, pod):
        for address in ("127.0.0.1", "127.9.9.9", pod.address, "0.0.0.0"):  # noqa: S104
            data = [real_hello("api.example.com").hex()]
            outcome = pod.do("web.speak", address=address, port=15443, pieces=data)
            assert outcome.error in {"ECONNREFUSED", *ENDED}
    pod.wait_event(reason="relay")


def test_redirect_to_a_denied_host_leads_nowhere(world: World, pod: Pod, exposed: Exposed) -> None:
    start = "https://web.example.com/redirect?to="
    before = world.stranger.connections
    with world.nothing_leaves(pod):
        by_name = pod.do("web.fetch_failing", url=f"{start}https://evil.example.net/x").text
        assert "Name or service not known" in by_name
        by_address = pod.do("web.fetch_failing", url=f"{start}https://{STRANGER}/x").text
        assert "Connection refused" in by_address
        by_port = pod.do("web.fetch_failing", url=f"{start}http://{DB}:8443/x").text
        assert "Connection refused" in by_port
    assert world.stranger.connections == before
    ended = pod.do("web.fetch", url=f"{start}https://web.example.com/hello").table
    assert (ended["status"], ended["body"]) == (200, "a page")
    followed = exposed.do("web.fetch", url=f"{start}https://evil.example.net/x").table
    assert followed["url"] == "https://evil.example.net/x"


def test_an_allowed_name_at_another_address_is_refused(
    world: World, pod: Pod, launchpad: Launchpad
) -> None:
    """The right name, said to an address that it was never answered for."""
    with nothing_is_dialled(world, pod):
        assert speak(pod, real_hello("api.example.com"), address=WEB).startswith(ALERT)
    pod.wait_event(layer="tls", name="api.example.com", address=WEB)
    with launchpad.open(["api.example.com", "db.example.com:5432/tcp"]) as unasked:
        with world.nothing_leaves(unasked):  # nothing was looked up yet
            assert speak(unasked, real_hello("api.example.com")) == "ECONNREFUSED"
        assert unasked.do("names.lookup", name="api.example.com").error is None
        assert unasked.do("web.say", address=API, name="api.example.com").text == "hello"


def test_two_names_of_one_address_are_each_verified(world: World, launchpad: Launchpad) -> None:
    rules = ["api.example.com", "other.example.com", "db.example.com:5432/tcp"]
    with launchpad.open(rules) as both:
        assert both.do("names.lookup", name="api.example.com").error is None
        with nothing_is_dialled(world, both):
            assert speak(both, real_hello("other.example.com")).startswith(ALERT)
        assert both.do("names.lookup", name="other.example.com").error is None
        for name in ("api.example.com", "other.example.com"):
            assert both.do("web.say", address=API, name=name).text == "hello"
        with nothing_is_dialled(world, both):
            assert speak(both, real_hello("evil.example.net")).startswith(ALERT)


def test_a_rule_without_verification_says_so_and_does_not_verify(
    world: World, launchpad: Launchpad
) -> None:
    rules = [{"host": "api.example.com", "ports": 443, "tls": "off"}, "db.example.com:5432/tcp"]
    with launchpad.open(rules) as off:
        assert off.do("names.lookup", name="api.example.com").error is None
        assert off.do("web.say", address=API, name="other.example.com").text == "hello"
        with world.nothing_leaves(off):
            assert speak(off, real_hello("web.example.com"), address=WEB) == "ECONNREFUSED"


def test_idle_and_half_open_connections_hurt_their_own_sandbox_alone(
    world: World, launchpad: Launchpad, pod: Pod
) -> None:
    rules = ["api.example.com", "db.example.com:5432/tcp"]
    with launchpad.open(rules) as greedy:
        assert greedy.do("names.lookup", name="api.example.com").error is None
        half = real_hello("api.example.com")[:40].hex()
        with nothing_is_dialled(world, greedy):
            held = greedy.do(
                "names.hold_streams", address=API, port=443, count=300, data=half
            ).number
            assert held >= 256
            greedy.wait_event(layer="tls", reason="too many connections")
            assert pod.do("web.say", address=API, name="web.example.com").error is not None
        assert pod.do("web.say", address=API, name="api.example.com").text == "hello"
        assert greedy.do("names.let_go").number == 300
        assert greedy.do("web.say", address=API, name="api.example.com").text == "hello"


def test_a_flood_of_broken_hellos_leaves_the_relay_working(world: World, pod: Pod) -> None:
    garbage = (b"\x16\3\1\x08\0" + bytes(range(256)) * 8).hex()
    with nothing_is_dialled(world, pod):
        report = pod.do(
            "web.knock", address=API, port=443, count=300, data=garbage, within=60
        ).table
        assert "TimeoutError" not in report
    assert pod.do("web.say", address=API, name="api.example.com").text == "hello"
