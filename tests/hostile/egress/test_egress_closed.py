"""Promise *closed* for egress: what is unknown, too broad or not enforceable stops the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandboxed_mcp import ConfigError, EngineError, LaunchError, ServerConfig, open_sandbox
from sandboxed_mcp.sandbox import asked
from tests.hostile.arena import RUN, Arena, containers_named
from tests.hostile.egress.pods import RESOLVER
from tests.hostile.wire import open_wire

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from tests.hostile.egress.pods import Launchpad

pytestmark = [pytest.mark.claim("closed"), pytest.mark.timeout(420)]

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "everything": ({"egress": ["*"]}, "egress"),
    "a_top_level_domain": ({"egress": ["*.com"]}, "egress"),
    "a_star_in_the_middle": ({"egress": ["api.*.example.com"]}, "egress"),
    "half_a_label": ({"egress": ["api-*.example.com"]}, "egress"),
    "every_ipv4_address": ({"egress": ["0.0.0.0/0:443/tcp"]}, "egress"),
    "half_of_ipv4": ({"egress": ["128.0.0.0/1:443/tcp"]}, "egress"),
    "every_ipv6_address": ({"egress": ["[::/0]:443/tcp"]}, "egress"),
    "much_of_ipv6": ({"egress": ["[2001::/16]:443/tcp"]}, "egress"),
    "a_network_with_host_bits": ({"egress": ["198.51.100.7/24:443/tcp"]}, "egress"),
    "an_address_without_protocol": ({"egress": ["198.51.100.7:443"]}, "egress"),
    "a_number_as_address": ({"egress": ["3325256711:443/tcp"]}, "egress"),
    "an_octal_address": ({"egress": ["0306.063.0144.07:443/tcp"]}, "egress"),
    "port_0": ({"egress": ["api.example.com:0"]}, "egress"),
    "port_65536": ({"egress": ["api.example.com:65536"]}, "egress"),
    "a_range_backwards": ({"egress": ["api.example.com:90-80/tcp"]}, "egress"),
    "icmp": ({"egress": ["api.example.com:1/icmp"]}, "egress"),
    "a_url": ({"egress": ["https://api.example.com/"]}, "egress"),
    "user_information": ({"egress": ["user@api.example.com"]}, "egress"),
    "a_newline": ({"egress": ["api.example.com\nevil.example.net"]}, "egress"),
    "a_space": ({"egress": ["api.example.com "]}, "egress"),
    "a_nul": ({"egress": ["api.example.com\0"]}, "egress"),
    "an_invisible_character": ({"egress": ["api\u200b.example.com"]}, "egress"),
    "loopback": ({"egress": ["127.0.0.1:5432/tcp"]}, "egress"),
    "link_local": ({"egress": ["169.254.0.0/16:80/tcp"]}, "egress"),
    "metadata_without_saying_so": ({"egress": ["169.254.169.254:80/tcp"]}, "egress"),
    "multicast": ({"egress": ["224.0.0.0/8:5353/udp"]}, "egress"),
    "a_mapped_address": ({"egress": ["[::ffff:198.51.100.7]:443/tcp"]}, "egress"),
    "an_unknown_key": ({"egress": [{"host": "api.example.com", "allow_privat": True}]}, "egress"),
    "a_rule_without_host": ({"egress": [{"ports": 443}]}, "egress"),
    "unknown_verification": (
        {"egress": [{"host": "api.example.com", "tls": "maybe"}]},
        "egress",
    ),
    "verification_over_udp": (
        {"egress": [{"host": "api.example.com", "protocol": "udp", "tls": "verify"}]},
        "egress",
    ),
    "verification_of_an_address": (
        {"egress": [{"host": "198.51.100.7", "ports": 443, "tls": "verify"}]},
        "egress",
    ),
    "permission_as_a_word": (
        {"egress": [{"host": "api.example.com", "allow_private": "yes"}]},
        "egress",
    ),
    "a_rate_of_0": (
        {"egress": [{"host": "api.example.com", "max_connections_per_minute": 0}]},
        "egress",
    ),
    "unrestricted_in_a_list": ({"egress": ["unrestricted"]}, "egress"),
    "another_word": ({"egress": "all"}, "egress"),
    "true": ({"egress": True}, "egress"),
    "the_same_rule_twice": ({"egress": ["api.example.com", "api.example.com:443"]}, "egress"),
    "a_resolver_by_name": ({"egress": ["api.example.com"], "dns": ["dns.example.com"]}, "dns"),
    "a_resolver_on_loopback": ({"egress": ["api.example.com"], "dns": ["127.0.0.53"]}, "dns"),
    "a_resolver_at_metadata": ({"egress": ["api.example.com"], "dns": ["169.254.169.254"]}, "dns"),
    "a_resolver_with_port_0": ({"egress": ["api.example.com"], "dns": ["198.51.100.53:0"]}, "dns"),
    "an_unknown_setting": ({"egres": ["api.example.com"]}, "egres"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_setting_stops_the_launch(
    arena: Arena, portal: BlockingPortal, case: tuple[dict[str, Any], str]
) -> None:
    policy, setting = case
    hostile = arena.hostile(tag="closed", policy={"dns": [RESOLVER], **policy})
    with pytest.raises(ConfigError) as caught:
        launch(portal, hostile.config)
    assert setting in str(caught.value)
    assert hostile.name in str(caught.value)
    assert containers_named(hostile.name) == []


def test_setting_stops_the_command_line(arena: Arena) -> None:
    hostile = arena.hostile(tag="closed", policy={"egress": ["*.com"], "dns": [RESOLVER]})
    with open_wire(hostile.argv) as wire:
        wire.close_stdin()  # one that is launched ends well
        assert wire.wait(30) != 0
        assert "policy.egress" in wire.stderr
        assert hostile.name in wire.stderr
        assert "Traceback" not in wire.stderr


@pytest.mark.claim("closed")
def test_a_wildcard_below_a_public_suffix_stops_the_launch(
    arena: Arena, portal: BlockingPortal
) -> None:
    hostile = arena.hostile(tag="closed", policy={"egress": ["*.co.uk"], "dns": [RESOLVER]})
    with pytest.raises(ConfigError):
        launch(portal, hostile.config)


@pytest.mark.claim("closed", twin=True)
def test_a_policy_that_can_be_enforced_launches(arena: Arena) -> None:
    policy = {"egress": ["198.51.100.7/32:443/tcp"], "dns": [RESOLVER]}
    with arena.hostile(tag="closed", policy=policy).open() as wire:
        assert wire.probe("insight.interfaces")


@pytest.mark.claim("closed")
def test_a_runtime_the_engine_does_not_know_stops_the_launch(
    launchpad: Launchpad, portal: BlockingPortal
) -> None:
    config = launchpad.config(["198.51.100.7/32:443/tcp"], policy={"runtime": "nosuch"})
    with pytest.raises((ConfigError, EngineError), match="nosuch"):
        launch(portal, config)
    assert containers_named(config.name) == []


def test_a_missing_gateway_image_stops_the_launch_with_what_to_do(
    launchpad: Launchpad, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a name that no image has, since others use the real one."""
    missing = f"sandboxed-mcp/gateway:{RUN}"
    monkeypatch.setattr(asked, "GATEWAY_IMAGE", missing)
    config = launchpad.config(["198.51.100.7/32:443/tcp"])
    with pytest.raises(EngineError, match="sandboxed-mcp build gateway") as caught:
        launch(portal, config)
    assert missing in str(caught.value)
    assert containers_named(config.name) == []


def test_an_image_that_is_no_gateway_stops_the_launch(
    launchpad: Launchpad, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "GATEWAY_IMAGE", "sandboxed-mcp/base:latest")
    config = launchpad.config(["198.51.100.7/32:443/tcp"])
    with pytest.raises((EngineError, LaunchError)):
        launch(portal, config)
    assert containers_named(config.name) == []


def launch(portal: BlockingPortal, config: ServerConfig) -> None:
    with portal.wrap_async_context_manager(open_sandbox(config)):
        raise AssertionError("it was launched")
