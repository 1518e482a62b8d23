"""A task group for the inside of a context manager: its end cancels, its body's error is bare.

anyio's own group wraps whatever its body raises in an `ExceptionGroup`; whoever opened a
sandbox or a client must see the error that was raised.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup

__all__ = ["open_tasks"]


@asynccontextmanager
async def open_tasks() -> AsyncGenerator[TaskGroup]:
    """A task group that is cancelled at its end; must be left by the task that entered it."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except (GeneratorExit, anyio.get_cancelled_exc_class()):
            raise
        except BaseException as error:  # noqa: BLE001 - raised again below, not inside the group
            failure = error
        finally:
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
