"""Lines come out whole, unchanged and bounded, however their bytes arrive."""

from __future__ import annotations

import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.bridge.framing import EDGE_BYTES, Line, LineAssembler, Overlong

LIMIT = 24
text_strategy = st.lists(
    st.one_of(st.binary(max_size=60), st.sampled_from([b"\n", b"\r\n", b" ", b"\xe2\x80\xa8"])),
    max_size=20,
).map(b"".join)
cuts_strategy = st.lists(st.integers(min_value=0, max_value=700), max_size=30)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(marks)]


def assemble(parts: list[bytes], limit: int = LIMIT) -> list[Line | Overlong]:
    assembler = LineAssembler(limit)
    found = [item for part in parts for item in assembler.receive(memoryview(part))]
    rest = assembler.finish()
    return found if rest is None else [*found, rest]


def expected(data: bytes, limit: int = LIMIT) -> list[Line | Overlong]:
    """The same, written in the most obvious way."""
    items: list[Line | Overlong] = []
    for line in data.split(b"\n"):
        if len(line) > limit:
            head, tail = line[: min(limit, EDGE_BYTES)], line[-EDGE_BYTES:]
            items.append(Overlong(head, b"", limit, limit + 1, ended=False))
            items.append(Overlong(head, tail, limit, len(line), ended=True))
        elif line.strip():
            items.append(line)
    return items


@given(text_strategy, cuts_strategy)
def test_any_split_gives_the_same_lines(data: bytes, cuts: list[int]) -> None:
    assert assemble(split(data, cuts)) == expected(data)


@given(text_strategy)
def test_bytes_one_by_one_give_the_same_lines(data: bytes) -> None:
    assert assemble([bytes([byte]) for byte in data]) == expected(data)


@given(st.lists(st.binary(min_size=1, max_size=50).filter(lambda line: b"\n" not in line)))
def test_lines_survive_a_round_trip(lines: list[bytes]) -> None:
    wanted = [line for line in lines if line.strip()]
    assert assemble([b"".join(line + b"\n" for line in lines)], limit=50) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "\u2028 \u2029 \x85 \x0b \x0c \x1c".encode() + b"x",
        "a\xa0b \U0001f468\u200d\U0001f469".encode(),
        b"\xff\xfe\x00 invalid",
        b"ends with a carriage return\r",
    ],
)
def test_bytes_inside_a_line_are_never_altered_and_never_split_it(line: bytes) -> None:
    assert assemble([line + b"\n"], limit=100) == [line]


def test_lines_of_white_space_are_dropped() -> None:
    assert assemble([b"\n\r\n  \t\n\na\n\n"]) == [b"a"]


def test_a_line_of_exactly_the_limit_is_kept() -> None:
    assert assemble([b"x" * LIMIT + b"\n"]) == [b"x" * LIMIT]


def test_an_overlong_line_is_reported_when_it_passes_the_limit_and_when_it_ends() -> None:
    assembler = LineAssembler(10_000)
    assert assembler.receive(b"H" * EDGE_BYTES + b"." * 5_904) == []

    (first,) = assembler.receive(b".")
    assert first == Overlong(b"H" * EDGE_BYTES, b"", 10_000, 10_001, ended=False)
    assert assembler.receive(b"." * 50_000) == []
    last, line = assembler.receive(b"T" * EDGE_BYTES + b"\nnext\n")

    length = 10_001 + 50_000 + EDGE_BYTES
    assert last == Overlong(b"H" * EDGE_BYTES, b"T" * EDGE_BYTES, 10_000, length, ended=True)
    assert line == b"next"


def test_an_endless_line_takes_constant_memory() -> None:
    assembler = LineAssembler(100_000)
    piece = b"x" * 65_536
    assembler.receive(piece * 2)

    tracemalloc.start()
    try:
        for _ in range(2_000):
            assert assembler.receive(piece) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(piece)


def test_an_unfinished_line_of_tiny_pieces_takes_memory_near_its_length() -> None:
    assembler = LineAssembler(1_000_000)
    tracemalloc.start()
    try:
        for _ in range(300_000):
            assembler.receive(b"xy")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 600_000


def test_the_end_of_the_stream_gives_the_rest() -> None:
    assembler = LineAssembler(100)
    assembler.receive(b'a\n{"jsonrpc"')

    assert assembler.finish() == b'{"jsonrpc"'
    assert assembler.finish() is None


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_keeps_nothing_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="keeps nothing"):
        LineAssembler(limit)


def test_assembly_takes_time_linear_in_the_length_of_a_line() -> None:
    def seconds(count: int) -> float:
        assembler = LineAssembler(1 << 30)
        piece = b"x" * 4_096
        start = time.thread_time()
        for _ in range(count):
            assembler.receive(piece)
        assembler.receive(b"\n")
        return time.thread_time() - start

    small = min(seconds(500) for _ in range(3))
    large = min(seconds(5_000) for _ in range(3))
    assert large < 60 * small
