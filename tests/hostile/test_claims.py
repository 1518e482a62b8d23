"""The list of promises and the tests that try to break them belong together."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
CLAIMS: dict[str, dict[str, Any]] = tomllib.loads(
    (HERE / "claims.toml").read_text(encoding="utf-8")
)
IDS = [
    *("closed", "egress", "dns", "private", "tls", "env", "files", "power"),
    *("limits", "orphans", "bytes", "secrets", "record"),
]


def read_marks() -> Iterator[tuple[str, str, bool]]:
    """Test, claim and whether it is a twin, for each mark of the suite, run or not."""
    for path in sorted(HERE.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for mark in node.decorator_list:
                    yield from read_mark(f"{path.name}::{node.name}", mark)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
                for mark in ast.walk(node.value):
                    yield from read_mark(path.name, mark)


def read_mark(place: str, mark: ast.AST) -> Iterator[tuple[str, str, bool]]:
    """The claim of one mark, if it is one."""
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.claim":
        (claim,) = (ast.literal_eval(word) for word in mark.args)
        yield place, claim, any(word.arg == "twin" for word in mark.keywords)


MARKS = list(read_marks())


def test_every_promise_is_listed_with_its_sentence() -> None:
    assert list(CLAIMS) == IDS
    for claim in CLAIMS.values():
        assert set(claim) == {"promise", "enforced"}
        assert claim["promise"].endswith(".")
        assert claim["enforced"] is True or claim["enforced"].startswith("not yet: ")


@pytest.mark.parametrize("claim", [name for name, one in CLAIMS.items() if one["enforced"] is True])
def test_enforced_promise_has_a_test_that_attacks_it_and_a_twin(claim: str) -> None:
    assert [test for test, of, twin in MARKS if of == claim and not twin]
    assert [test for test, of, twin in MARKS if of == claim and twin]


def test_no_test_claims_what_is_not_promised() -> None:
    assert {claim for _, claim, _ in MARKS} <= set(CLAIMS)


def test_every_test_of_the_hostile_suite_names_its_promise() -> None:
    marked = {test for test, _, _ in MARKS}
    for path in HERE.glob("test_*.py"):
        if path == Path(__file__):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert f"{path.name}::{node.name}" in marked
