"""One launch's conversation with the gateway: control lines in, events out, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final, cast

from sandboxed_mcp.egress.events import GatewayArmed, GatewayFailed, GatewayReady, PolicyRefused
from sandboxed_mcp.egress.values import RuleError
from sandboxed_mcp.gateway.answer import load_reader
from sandboxed_mcp.gateway.control import (
    MAX_LINE,
    ControlError,
    Policy,
    Stop,
    Update,
    parse_command,
)
from sandboxed_mcp.gateway.nft import NftError
from sandboxed_mcp.gateway.reporter import FLUSH_SECONDS, LineWriter, Reporter
from sandboxed_mcp.gateway.service import Gateway, open_gateway

if TYPE_CHECKING:
    from sandboxed_mcp.gateway.kernel import Kernel
    from sandboxed_mcp.gateway.link import Link

__all__ = ["run_session"]

_STDOUT: Final = 1


def run_session(kernel: Kernel, link: Link) -> int:
    """Serve until stdin ends; the network is shut afterwards.

    Returns:
        The process's exit code.
    """
    return asyncio.run(_run(kernel, link))


async def _run(kernel: Kernel, link: Link) -> int:
    lines = await _open_stdin()
    writer = LineWriter(_STDOUT, lines.feed_eof)
    reporter = Reporter(writer.write, time.monotonic)
    code = 0
    try:
        reporter.report(GatewayArmed(ipv6=link.ipv6, backstop=kernel.backstop))
        await _serve(lines, kernel, link, reporter)
    except Exception as error:  # noqa: BLE001 - fail closed, and say why
        reporter.report(GatewayFailed(reason=_explain(error)))
        code = 1
    try:
        kernel.shut()
    finally:
        reporter.flush()
        writer.finish()
    return code


async def _serve(
    lines: asyncio.StreamReader, kernel: Kernel, link: Link, reporter: Reporter
) -> None:
    """Wait for the first policy, then carry out what comes until the end."""
    first = await _next_command(lines)
    if first is None or isinstance(first, Stop):
        return
    if isinstance(first, Update):
        raise ControlError("an update came before the first policy")
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(_flush(reporter)), tasks.create_task(_fail_on_stray())]
        async with open_gateway(first, kernel, link, reporter.report) as gateway:
            resolvers = tuple(str(each.address) for each in gateway.policy.dns)
            reporter.report(GatewayReady(generation=first.generation, resolvers=resolvers))
            asyncio.get_running_loop().call_soon(load_reader)
            await _obey(lines, gateway, reporter)
        for task in background:
            task.cancel()


async def _obey(lines: asyncio.StreamReader, gateway: Gateway, reporter: Reporter) -> None:
    """Carry out updates; one that is refused changes nothing."""
    while True:
        try:
            command = await _next_command(lines)
        except ControlError as error:
            reporter.report(PolicyRefused(generation=error.generation, reason=str(error)))
            continue
        match command:
            case Update(policy):
                await _update(gateway, policy, reporter)
            case Policy(generation):
                problem = "a policy is in force; send an update"
                reporter.report(PolicyRefused(generation=generation, reason=problem))
            case _:
                return


async def _update(gateway: Gateway, policy: Policy, reporter: Reporter) -> None:
    try:
        await gateway.update(policy)
    except (ControlError, NftError, RuleError) as error:
        reporter.report(PolicyRefused(generation=policy.generation, reason=str(error)))


async def _next_command(lines: asyncio.StreamReader) -> Policy | Update | Stop | None:
    """Read a control line; None at the end. A line that is cut off is no command."""
    line = await lines.readline()
    return parse_command(line) if line.endswith(b"\n") else None


async def _open_stdin() -> asyncio.StreamReader:
    """Stdin as a stream that also ends with SIGTERM: the process is its container's first."""
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lines.feed_eof)
    return lines


async def _flush(reporter: Reporter) -> None:
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        reporter.flush()


async def _fail_on_stray() -> None:
    """Raise what a callback of the loop raised: nothing here may go wrong unseen."""
    loop = asyncio.get_running_loop()
    stray: asyncio.Future[None] = loop.create_future()

    def notice(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(str(context.get("message")))
        if not stray.done():
            stray.set_exception(error)

    loop.set_exception_handler(notice)
    with contextlib.suppress(asyncio.CancelledError):
        await stray


def _explain(error: Exception) -> str:
    """The innermost reason: its type, its words and where it came from."""
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", inner).exceptions[0]
    trace = inner.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_name}:{trace.tb_lineno})"
    return f"{type(inner).__name__}: {inner}{place}"
