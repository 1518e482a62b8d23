"""The parsers hold against arbitrary and against nearly right input."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS

MESSAGES = 100_000


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_arbitrary_input_is_handled(target: str) -> None:
    @settings(max_examples=300, deadline=None)
    @given(st.binary(max_size=700))
    def check(data: bytes) -> None:
        TARGETS[target](data)

    check()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_nearly_right_input_is_handled(target: str) -> None:
    @settings(max_examples=500, deadline=None)
    @given(
        seed=st.sampled_from(SEEDS[target]),
        edits=st.lists(
            st.tuples(st.integers(0, 700), st.binary(max_size=4), st.integers(0, 4)), max_size=6
        ),
    )
    def check(seed: bytes, edits: list[tuple[int, bytes, int]]) -> None:
        for at, replacement, length in edits:
            place = at % (len(seed) + 1)
            seed = seed[:place] + replacement + seed[place + length :]
        TARGETS[target](seed)

    check()


def test_a_hundred_thousand_damaged_queries_are_handled() -> None:
    chance = random.Random(20240501)  # noqa: S311 - repeatable, no secret
    seeds = SEEDS["query"]
    for _ in range(MESSAGES):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        end = chance.randrange(len(data)) if chance.random() < 0.1 else len(data)
        TARGETS["query"](bytes(data[:end]))
