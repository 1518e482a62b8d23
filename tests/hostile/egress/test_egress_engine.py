"""Promise *closed* for egress: an engine that cannot hold a pod is refused, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.hostile.egress.pods import RESOLVER
from tests.hostile.own_engine import open_engine
from tests.hostile.wire import open_wire

if TYPE_CHECKING:
    from tests.hostile.arena import Arena

pytestmark = [pytest.mark.claim("closed"), pytest.mark.timeout(240)]


def test_an_engine_without_a_default_bridge_is_refused_with_the_reason(arena: Arena) -> None:
    policy = {"egress": ["198.51.100.7/32:443/tcp"], "dns": [RESOLVER]}
    with open_engine() as engine:
        engine.load("sandboxed-mcp/gateway:latest")
        elsewhere = replace(arena, env=engine.env)
        hostile = elsewhere.hostile(tag="bridgeless", policy=policy)
        with open_wire(hostile.argv, env=engine.env) as wire:
            wire.close_stdin()
            assert wire.wait(60) != 0
            assert "bridge" in wire.stderr
            assert hostile.name in wire.stderr
            assert "Traceback" not in wire.stderr
        assert hostile.containers() == []
        offline = elsewhere.hostile(tag="bridgeless", policy={})
        with offline.open(env=engine.env) as wire:
            assert wire.probe("insight.interfaces")[:1] == ["lo"]
