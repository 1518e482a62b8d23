"""What a server writes is safe to show, and shows no secret."""

from __future__ import annotations

import base64
import json
import re
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.text import Redactor, TailBuffer, sanitize

VALUE = 'tok"en/é+1 äöü\\23456789'
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufe00-\ufe0f\U000e0000-\U000e0fff]"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ü, 漢字, 🙂", "plain text, ü, 漢字, 🙂"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\x9b31mb", r"a\x9b31mb"),
        ("a\nb\tc\rd", r"a\x0ab\x09c\x0dd"),
        ("abc\u202edcba", r"abc\u202edcba"),
        ("a\u2066b\u2069", r"a\u2066b\u2069"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("tag\U000e0041\U000e0101\ufe0f", r"tag\U000e0041\U000e0101\ufe0f"),
        ("\ud800", r"\ud800"),
        ("\u2028", r"\u2028"),
        ("\ue000\u0378", r"\ue000\u0378"),
        (b"\xff\xfe ok \xc3", r"\xff\xfe ok \xc3"),
        (bytearray("ü\0", "utf-8"), r"ü\x00"),
    ],
)
def test_what_does_not_print_is_escaped(text: str | bytes | bytearray, shown: str) -> None:
    assert sanitize(text, 1_000) == shown


def test_newlines_and_tabs_are_kept_where_lines_are_shown() -> None:
    assert sanitize("a\r\nb\tc\rd\n", 100, multiline=True) == "a\nb\tc\\x0dd\n"


@given(st.one_of(st.text(), st.binary()), st.integers(min_value=0, max_value=60), st.booleans())
def test_sanitized_text_is_printable_and_bounded(
    text: str | bytes, limit: int, multiline: bool
) -> None:
    shown = sanitize(text, limit, multiline=multiline)

    assert len(shown) <= limit + len("...")
    assert HIDDEN.search(re.sub(r"[\n\t]", "", shown) if multiline else shown) is None
    shown.encode()


@pytest.mark.parametrize("char", ["x", "ü", "漢", "🙂"])
def test_text_that_is_cut_says_so(char: str) -> None:
    assert sanitize(char * 10, 10) == char * 10
    assert sanitize(char * 11, 10) == char * 10 + "..."
    assert sanitize((char * 11).encode(), 10) == char * 10 + "..."


def test_only_the_needed_part_of_a_huge_text_is_looked_at() -> None:
    huge = b"\x1b" * 64_000_000
    start = time.thread_time()
    sanitize(huge, 200)
    assert time.thread_time() - start < 2


@pytest.mark.parametrize(
    "written",
    [
        VALUE,
        json.dumps(VALUE),
        json.dumps(VALUE, ensure_ascii=False),
        repr(VALUE),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode().rstrip("="),
        base64.b64encode(b"u:" + VALUE.encode() + b"@host").decode(),
        base64.b64encode(b"u" + VALUE.encode() + b"x").decode(),
        quote(VALUE),
        quote(VALUE, safe=""),
        quote_plus(VALUE),
        VALUE.encode().hex(),
        VALUE.encode().hex().upper(),
    ],
)
def test_a_secret_is_redacted_however_it_is_written(written: str) -> None:
    redactor = Redactor({"API_KEY": VALUE})

    shown = redactor.redact(f"before {written} after")

    assert "[secret API_KEY]" in shown
    assert "6789" not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert redactor.redact_bytes(f"before {written} after".encode()) == shown.encode()


def test_each_line_of_a_secret_is_redacted() -> None:
    redactor = Redactor({"KEY": "-----BEGIN KEY-----\nc2VjcmV0\nabc\n"})
    assert redactor.redact("line 2 is c2VjcmV0 abc") == "line 2 is [secret KEY] abc"


def test_overlapping_and_adjacent_secrets_leave_nothing() -> None:
    redactor = Redactor({"A": "abab", "LONG": "secret-and-more", "SHORT": "secret"})

    assert redactor.redact("ababab.abababab") == "[secret A].[secret A]"
    assert redactor.redact("secret-and-more") in ("[secret LONG]", "[secret SHORT]")
    assert redactor.redact("secretsecret") == "[secret SHORT][secret SHORT]"


def test_values_too_short_to_be_secret_are_left_alone() -> None:
    assert Redactor({"DEBUG": "1", "EMPTY": ""}).redact("level 1") == "level 1"


@given(st.text(alphabet="xyz \n%ü"), st.text(alphabet="0123456789", min_size=8))
def test_redacting_changes_nothing_but_the_secret(text: str, value: str) -> None:
    redactor = Redactor({"S": value})

    assert redactor.redact(text) == text
    assert redactor.redact(f"{text}{value}{text}") == f"{text}[secret S]{text}"


@given(st.text(alphabet="ab\ud800", max_size=30))
def test_text_with_lone_surrogates_survives(text: str) -> None:
    assert Redactor({"S": "unrelated"}).redact(text) == text


def test_a_tail_begins_at_a_line() -> None:
    tail = TailBuffer(10)
    for _ in range(100):
        tail.append(b"0123456\n")
    assert tail.show() == "0123456\n"


def test_a_short_stream_is_shown_whole() -> None:
    tail = TailBuffer(100)
    tail.append(b"first\nsecond")
    assert tail.show() == "first\nsecond"


def test_a_tail_of_one_long_line_begins_at_a_character() -> None:
    tail = TailBuffer(10)
    tail.append("ä漢🙂🙂🙂".encode())
    assert tail.show() == "🙂🙂"


def test_a_last_line_alone_is_not_lost() -> None:
    tail = TailBuffer(10)
    tail.append(b"x" * 50 + b"\n")
    assert tail.show() == "x" * 9 + "\n"


@given(st.lists(st.binary(max_size=30)), st.integers(min_value=1, max_value=20))
def test_a_tail_is_the_end_of_the_stream(pieces: list[bytes], limit: int) -> None:
    tail = TailBuffer(limit)
    for piece in pieces:
        tail.append(memoryview(piece))
    whole = sanitize(b"".join(pieces), 10_000, multiline=True).replace("\r\n", "\n")
    assert len(tail.show()) <= 4 * limit
    assert whole.endswith(tail.show()) or b"\r\n" in b"".join(pieces)


@pytest.mark.parametrize("limit", range(1, 60))
def test_a_secret_cut_by_the_start_of_the_tail_is_not_shown(limit: int) -> None:
    tail = TailBuffer(limit, Redactor({"KEY": "0123456789abcdef"}))
    for byte in b"0123456789abcdef" * 20:
        tail.append(bytes([byte]))
    assert re.search("[0-9b-df]", tail.show().replace("[secret KEY]", "")) is None
    assert tail.show()


def test_a_flood_costs_time_linear_in_its_length() -> None:
    def seconds(count: int) -> float:
        tail = TailBuffer(65_536)
        start = time.thread_time()
        for _ in range(count):
            tail.append(b"x" * 100)
        return time.thread_time() - start

    small = min(seconds(5_000) for _ in range(3))
    large = min(seconds(50_000) for _ in range(3))
    assert large < 60 * small


def test_a_tail_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps nothing"):
        TailBuffer(0)


def test_the_head_of_a_line_is_safe_to_show_and_short() -> None:
    line = b"\x1b]0;owned\x07 \xff" + "\u202e".encode() + b"x" * 10_000
    head = Redactor({}).show_head(line, 200)
    assert head.startswith(r"\x1b]0;owned\x07 \xff\u202exxx")
    assert len(head) < 210


@pytest.mark.parametrize("before", range(180, 201))
def test_a_secret_at_the_cut_of_a_head_does_not_show(before: int) -> None:
    redactor = Redactor({"TOKEN": "s3cret-value"})
    head = redactor.show_head(b"." * before + b"s3cret-value and more", 200)
    assert "s3c" not in head


@given(st.lists(st.integers(0, 60), max_size=6), st.integers(0, 40))
def test_a_stream_cut_anywhere_shows_no_part_of_a_secret(cuts: list[int], before: int) -> None:
    redactor = Redactor({"TOKEN": "s3cret-value"})
    stream = b"." * before + b"s3cret-value" + b"-" * 20
    shown, rest, start = b"", b"", 0
    for end in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        part, rest = redactor.split(rest + stream[start:end])
        shown, start = shown + part, end
    shown += redactor.redact_bytes(rest)
    assert shown == b"." * before + b"[secret TOKEN]" + b"-" * 20
