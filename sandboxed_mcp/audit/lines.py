"""Reading an audit log back: lines of JSON, as tables of values. Reads only.

A log may have been cut off by a crash, or edited: a line that is no event is counted, and the
rest is read. What is in a table is what stands in the file: nothing of it can be relied on.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from sandboxed_mcp.audit.log import KEPT_FILES
from sandboxed_mcp.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["AuditRecord", "parse_event_line", "read_audit"]

MAX_LINE: Final = 1 << 20


@dataclass(slots=True)
class AuditRecord:
    """What an audit log holds; iterate over it once to read it.

    Attributes:
        path: The file that is written to; those before it are read too.
        bad_lines: How many lines were no events, so far.
    """

    path: Path
    bad_lines: int = field(default=0, init=False)

    def __iter__(self) -> Iterator[dict[str, object]]:
        """Each event, the oldest first."""
        names = [f"{self.path.name}.{number}" for number in range(KEPT_FILES - 1, 0, -1)]
        for name in names:
            with suppress(FileNotFoundError):
                yield from self._read(self.path.with_name(name))
        yield from self._read(self.path)

    def _read(self, path: Path) -> Iterator[dict[str, object]]:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(0, "it is not a regular file")
            while line := file.readline(MAX_LINE):
                event = parse_event_line(line)
                if event is None:
                    self.bad_lines += 1
                else:
                    yield event


def read_audit(path: Path) -> tuple[list[dict[str, object]], int]:
    """Everything that an audit log holds, the files before it included.

    Returns:
        The events, the oldest first, and the number of lines that were none.

    Raises:
        ConfigError: It cannot be read.
    """
    record = AuditRecord(path)
    try:
        return list(record), record.bad_lines
    except OSError as error:
        raise ConfigError(
            str(path), f"it cannot be read ({error.strerror})", "name an audit log of yours"
        ) from error


def parse_event_line(line: bytes) -> dict[str, object] | None:
    """One event of an audit log or of a stream of events; None when it is none."""
    try:
        loaded: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(loaded, dict):
        return None
    values = cast("dict[str, object]", loaded)
    return values if isinstance(values.get("event"), str) else None
