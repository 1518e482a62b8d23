"""From pydantic's words to ours: the one place where a validation error is translated.

Every model of the config stage is a `Table`: frozen, unknown keys refused, and an error of its
constructor is a `ConfigError` that names setting, value and fix. No message shows a value below
`env` or `secrets`: it may be a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sandboxed_mcp.egress.suggest import suggest
from sandboxed_mcp.egress.values import RuleError
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic_core import ErrorDetails

__all__ = [
    "RefusedError",
    "Section",
    "Table",
    "join_problems",
    "parse_table",
    "refusing_rules",
    "render_setting",
    "shown",
]

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_SECRETIVE: Final = frozenset({"env", "secrets", "args"})
_LONGEST_SHOWN: Final = 120


class RefusedError(ValueError):
    """A value that a validator refuses; `setting` is relative to the value, such as `.mode`."""

    def __init__(self, problem: str, fix: str, setting: str = "") -> None:
        """Keep the parts for the translation."""
        self.problem = problem
        self.fix = fix
        self.setting = setting
        super().__init__(f"{problem}; {fix}")


@dataclass(frozen=True, slots=True)
class Section:
    """Where a table stands: what an error message says before the setting.

    Attributes:
        file: The file; None for arguments and code.
        path: Dotted path of the table, such as `servers.notes`; empty for the top.
        sandbox: Whether the table is an entry of a client's JSON file, where all but the
            client's own keys stand in a `sandbox` table.
    """

    file: str | None = None
    path: str = ""
    sandbox: bool = False

    def setting(self, relative: str) -> str:
        """The dotted path of a setting of this table, `relative` being `.key...`."""
        first = relative.lstrip(".").partition(".")[0].partition("[")[0]
        nested = self.sandbox and first and first not in CLIENT_KEYS
        joined = self.path + (".sandbox" if nested else "") + relative
        return joined.lstrip(".") or "(the whole)"

    def error(self, relative: str, problem: str, fix: str) -> ConfigError:
        """Make the error of a setting of this table."""
        return ConfigError(self.setting(relative), problem, fix, file=self.file)


CLIENT_KEYS: Final = frozenset({"command", "args", "env", "cwd", "disabled", "name"})
"""The settings that stand beside `sandbox` in a client's file, not in it."""


class _TableType(type(BaseModel)):
    """Makes a direct call of a model raise `ConfigError`; nested validation is untouched."""

    if not TYPE_CHECKING:

        def __call__(cls, *args: object, **values: object) -> object:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise translate(error, cls, Section()) from None


class Table(BaseModel, metaclass=_TableType):
    """A table of the configuration: frozen, closed, and silent about its input in errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    parts: ClassVar[Mapping[str, type[Table]]] = {}
    """The tables below this one, by key; for the suggestion on an unknown key."""

    internal: ClassVar[frozenset[str]] = frozenset()
    """Fields that code sets and no file; never suggested."""


_Table = TypeVar("_Table", bound=Table)
_Value = TypeVar("_Value")


def parse_table(model: type[_Table], value: object, section: Section) -> _Table:
    """Validate a table.

    Args:
        model: What the table must be.
        value: As read from the file.
        section: Where it stands.

    Raises:
        ConfigError: One or more settings are refused; the message has a line for each.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise translate(error, model, section) from None


def translate(error: ValidationError, model: type[Table], section: Section) -> ConfigError:
    """Turn pydantic's report into one error; more than one problem makes more than one line."""
    details = error.errors(include_url=False)
    return join_problems([_translate_one(one, model, section) for one in details])


def join_problems(errors: Sequence[ConfigError]) -> ConfigError:
    """Make one error of several: the attributes are the first one's, the text is of all."""
    first, *others = errors
    if not others:
        return first
    fix = "\n".join([first.fix, *(str(other) for other in others)])
    return ConfigError(first.setting, first.problem, fix, file=first.file)


def refusing_rules(parse: Callable[[object], _Value]) -> Callable[[object], _Value]:
    """Let a parser of the egress stage serve as a validator."""

    def validate(value: object) -> _Value:
        try:
            return parse(value)
        except RuleError as error:
            raise RefusedError(error.problem, error.fix, error.setting) from error

    return validate


def render_setting(location: Sequence[int | str]) -> str:
    """Write pydantic's location as `.key[0].key`, quoting a key that is not bare."""
    parts: list[str] = []
    for step in location:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if _BARE.match(step) else f".{shown(step)}")
    return "".join(parts)


def shown(value: object) -> str:
    """Show a value as written, on one line, escaped and cut short."""
    if isinstance(value, str):
        cut = value[:_LONGEST_SHOWN]
        return repr(cut) + (" and so on" if cut != value else "")
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, float):
        return "nothing" if value is None else repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 1 << 64 else "a number that large"
    kinds: dict[object, str] = {dict: "a table", list: "a list", tuple: "a list"}
    return kinds.get(type(value), f"of type {type(value).__name__}")


def _translate_one(detail: ErrorDetails, model: type[Table], section: Section) -> ConfigError:
    location, cause = detail["loc"], detail.get("ctx", {}).get("error")
    relative = render_setting(location)
    if isinstance(cause, RefusedError):
        return section.error(relative + cause.setting, cause.problem, cause.fix)
    if detail["type"] == "extra_forbidden":
        return section.error(relative, *_explain_unknown(location, model))
    if detail["type"] == "missing":
        return section.error(relative, "is not set", "add it")
    value = "" if _SECRETIVE.intersection(location) else f" {shown(detail['input'])}"
    return section.error(relative, f"the value{value} is refused: {detail['msg']}", _fix(detail))


def _fix(detail: ErrorDetails) -> str:
    wanted = {
        "string_type": "write a text in quotes",
        "tuple_type": "write a list, such as [...]",
        "bool_type": "write true or false",
        "model_type": "write a table",
        "dict_type": "write a table",
        "mapping_type": "write a table",
        "literal_error": "write one of these",
    }
    return wanted.get(detail["type"], "correct it")


def _explain_unknown(location: Sequence[int | str], model: type[Table]) -> tuple[str, str]:
    *above, key = location
    for step in above:
        if isinstance(step, str):
            model = model.parts.get(step, model)
    fields = {name: one for name, one in model.model_fields.items() if name not in model.internal}
    known = [field.alias or name for name, field in fields.items()]
    return f"the key {shown(key)} is unknown", suggest(key, known)
