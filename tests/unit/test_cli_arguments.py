"""The JSON arguments of a call: what is refused, and how the refusal reads."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxed_mcp.cli.arguments import parse_arguments
from sandboxed_mcp.errors import ConfigError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1, column 2"),
        ('{"a": 1,}', "line 1, column"),
        ('{"a":\n  b}', "line 2, column 3"),
        ("{'a': 1}", "line 1, column 2"),
        ("[1]", "a list, not an object"),
        ('"a"', "a text, not an object"),
        ("1", "a number, not an object"),
        ("null", "null, not an object"),
        ("true", "true or false, not an object"),
        ('{"a": NaN}', "NaN is no JSON number"),
        ('{"a": -Infinity}', "-Infinity is no JSON number"),
        ('{"a": 1, "a": 2}', 'the key "a" stands twice'),
        ('{"b": {"a": 1, "a": 2}}', 'the key "a" stands twice'),
        ('{"a": "\\ud800"}', "half of a surrogate pair"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
        ('{"a": [["\\udfff"]]}', "half of a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "not usable"),
        ("{} {}", "line 1, column 4"),
        ("\udc80", "not UTF-8 at character 1"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b"\xef\xbb\xbf{}", "BOM"),
    ],
)
def test_what_is_no_object_is_refused_with_its_place(text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_arguments(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "  \n", b"", "{}"])
def test_nothing_is_no_arguments(text: str | bytes) -> None:
    assert parse_arguments(text) == {}


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_every_object_is_read_as_it_is(value: dict[str, object]) -> None:
    assert parse_arguments(json.dumps(value)) == value


@given(st.text() | st.binary())
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    with suppress(ConfigError):
        parse_arguments(text)
