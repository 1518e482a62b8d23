"""The attach stream is taken apart the same way however its bytes arrive."""

from __future__ import annotations

import gc
import struct
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.engine.frames import FrameDecoder, ProtocolError, Stream

if TYPE_CHECKING:
    from collections.abc import Generator

frames_strategy = st.lists(st.tuples(st.sampled_from(Stream), st.binary(max_size=40)), max_size=12)
cuts_strategy = st.lists(st.integers(min_value=0, max_value=700), max_size=30)


def render_frame(stream: int, payload: bytes, padding: bytes = b"\0\0\0") -> bytes:
    return bytes([stream]) + padding + struct.pack(">I", len(payload)) + payload


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in pairwise(marks)]


def joined(pieces: list[tuple[Stream, memoryview]]) -> list[tuple[Stream, bytes]]:
    """Neighbouring pieces of one stream made one."""
    result: list[tuple[Stream, bytes]] = []
    for stream, piece in pieces:
        if result and result[-1][0] is stream:
            result[-1] = (stream, result[-1][1] + piece)
        else:
            result.append((stream, bytes(piece)))
    return result


@given(frames_strategy, cuts_strategy)
def test_any_split_of_the_attach_stream_gives_the_same_payload(
    frames: list[tuple[Stream, bytes]], cuts: list[int]
) -> None:
    data = b"".join(render_frame(stream, payload) for stream, payload in frames)
    decoder = FrameDecoder()
    pieces = [piece for part in split(data, cuts) for piece in decoder.receive(part)]

    whole = [(stream, memoryview(payload)) for stream, payload in frames if payload]
    assert joined(pieces) == joined(whole)
    assert all(len(piece) for _, piece in pieces)
    assert decoder.at_boundary


def test_payload_is_handed_out_before_its_frame_is_complete() -> None:
    decoder = FrameDecoder()
    frame = render_frame(Stream.STDOUT, b"hello world")

    assert decoder.receive(frame[:13]) == [(Stream.STDOUT, b"hello")]
    assert not decoder.at_boundary
    assert decoder.receive(frame[13:]) == [(Stream.STDOUT, b" world")]
    assert decoder.at_boundary


def test_pieces_are_views_of_what_was_received() -> None:
    data = render_frame(Stream.STDERR, b"x" * 100)

    ((_, piece),) = FrameDecoder().receive(data)

    assert piece.obj is data


def test_a_stream_cut_inside_a_header_is_not_at_a_boundary() -> None:
    decoder = FrameDecoder()

    assert decoder.receive(b"\x01\0\0") == []
    assert not decoder.at_boundary


@pytest.mark.parametrize(
    "header",
    [
        render_frame(3, b"x"),
        render_frame(255, b"x"),
        render_frame(1, b"x", b"\0\1\0"),
        b'{"jsonrpc":"2.0"}',
    ],
)
@pytest.mark.parametrize("step", [1, 5, 100])
def test_a_malformed_header_is_refused_with_its_bytes(header: bytes, step: int) -> None:
    decoder = FrameDecoder()
    data = render_frame(Stream.STDOUT, b"fine") + header

    parts = [data[start : start + step] for start in range(0, len(data), step)]

    with pytest.raises(ProtocolError, match=header[:4].hex(" ")):
        deque(map(decoder.receive, parts), maxlen=0)


@given(st.binary(max_size=200), cuts_strategy)
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes, cuts: list[int]) -> None:
    decoder = FrameDecoder()
    try:
        pieces = [piece for part in split(data, cuts) for piece in decoder.receive(part)]
    except ProtocolError:
        return
    assert sum(len(piece) for _, piece in pieces) <= len(data)


@pytest.fixture
def no_collector() -> Generator[None]:
    """No garbage collection: it walks the heap of the whole test run, not the decoder's."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_decoding_takes_time_linear_in_the_number_of_frames() -> None:
    def seconds(count: int) -> float:
        data = render_frame(Stream.STDOUT, b"x" * 32) * count
        start = time.thread_time()
        FrameDecoder().receive(data)
        return time.thread_time() - start

    # Both sizes are beyond the processor's caches, which are shared with other machines.
    small = min(seconds(30_000) for _ in range(5))
    large = min(seconds(300_000) for _ in range(5))
    assert large < 40 * small
