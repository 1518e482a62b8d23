"""Carries a plan out and undoes it: `open_sandbox`.

Opening an offline sandbox: engine, image, secret files, watchdog, create, compare with the
plan, attach, start. With egress rules the gateway comes first: create, compare, attach, start,
policy; the server is created meanwhile and started only when the gateway says that its rules
stand. Closing, in reverse and shielded from cancellation, every wait bounded: end of input,
SIGTERM, SIGKILL, remove, secret files, watchdog; then what dead launchers left behind goes too.
Whatever fails on the way in undoes what was done, and the error that made it fail is the one
that is raised. The audit log is opened before anything else and closed after everything else;
when it cannot be written any more, the server is killed.
"""

from __future__ import annotations

import os
import uuid
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from sandboxed_mcp.audit.log import AuditLog, open_audit_log
from sandboxed_mcp.config.mountinfo import read_mountinfo
from sandboxed_mcp.config.problems import RefusedError
from sandboxed_mcp.config.resolve import resolve_server
from sandboxed_mcp.config.resolved import ResolvedAudit, ResolvedServer
from sandboxed_mcp.config.swaps import Way, check_ways
from sandboxed_mcp.engine.connection import find_engine
from sandboxed_mcp.engine.control_sockets import list_places
from sandboxed_mcp.engine.orphans import sweep_orphans
from sandboxed_mcp.engine.owner import describe_owner
from sandboxed_mcp.engine.secret_files import make_secret_folder, open_secret_files
from sandboxed_mcp.engine.verify import compare_container
from sandboxed_mcp.engine.watchdog import watchdog_of_this_process
from sandboxed_mcp.errors import (
    ConfigError,
    EngineError,
    EngineRefusedError,
    LaunchError,
    PlanMismatchError,
    StartTimeoutError,
)
from sandboxed_mcp.events import Started
from sandboxed_mcp.plan import (
    GatewayPlan,
    ImageFacts,
    LaunchIdentity,
    SandboxPlan,
    render_create,
    render_gateway,
)
from sandboxed_mcp.recorder import Recorder
from sandboxed_mcp.sandbox.asked import plan_launch
from sandboxed_mcp.sandbox.control import ControlServer
from sandboxed_mcp.sandbox.mounted import compare_mounts, find_moved
from sandboxed_mcp.sandbox.refusals import name_setting
from sandboxed_mcp.sandbox.running import Sandbox
from sandboxed_mcp.sandbox.runtimes import (
    check_runtime,
    compare_process,
    find_file_server,
    read_status,
)
from sandboxed_mcp.tasks import open_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from anyio.abc import TaskGroup

    from sandboxed_mcp.config.servers import ServerConfig
    from sandboxed_mcp.engine.api import Engine
    from sandboxed_mcp.sandbox.gateway import GatewayLink

__all__ = ["open_sandbox"]

REMOVE_SECONDS: Final = 10.0
GATEWAY_END_SECONDS: Final = 1.0
REMOVE_POLL_SECONDS: Final = 0.02

_T = TypeVar("_T")


@asynccontextmanager
async def open_sandbox(
    server: ServerConfig | ResolvedServer,
    *,
    engine: Engine | None = None,
    observe: bool = False,
    audit: Path | None = None,
) -> AsyncGenerator[Sandbox]:
    """Starts a server in its sandbox; stops and removes it at the end.

    Args:
        server: The server's settings.
        engine: The engine to use; None finds it as Docker's own command line does.
        observe: Let nothing leave, whatever the policy says, and record what the server
            wants: every name resolves to an address that leads nowhere.
        audit: The file that every event is recorded in (`sandboxed_mcp.audit.log`); None for
            the one of the settings, if they name one. A server whose events cannot be
            recorded any more is killed.

    Raises:
        ConfigError: A setting cannot be used or cannot be enforced.
        EngineError: No engine answers, the image is missing, or the engine refuses.
        LaunchError: The sandbox did not come up as planned, or not in time.
    """
    resolved = (
        server if isinstance(server, ResolvedServer) else resolve_server(server, environ=os.environ)
    )
    timeout = resolved.policy.limits.start_timeout
    async with AsyncExitStack() as undo:
        log = undo.enter_context(_open_log(resolved, audit))
        tasks = await undo.enter_async_context(open_tasks())
        try:
            with anyio.fail_after(timeout):
                engine = engine or await find_engine(os.environ)
                launch = _Launch(resolved, engine, undo, tasks, log)
                sandbox = await launch.run(observe=observe)
        except TimeoutError as error:
            raise StartTimeoutError(
                f"server '{resolved.name}' did not start within limits.start_timeout = "
                f"{timeout:g} s; raise the limit or see 'sandboxed-mcp doctor'"
            ) from error
        yield sandbox


def _open_log(
    resolved: ResolvedServer, named: Path | None
) -> AbstractContextManager[AuditLog | None]:
    given = None if named is None else ResolvedAudit(str(named.absolute()), "audit")
    audit = given or resolved.audit
    if audit is None:
        return nullcontext()
    path = Path(audit.path)
    try:
        check_ways([Way(path, f"the audit log '{path}'")], resolved.mounts)
    except RefusedError as error:
        raise ConfigError(audit.setting, error.problem, error.fix, file=audit.file) from error
    return open_audit_log(path, audit.setting, audit.file)


class _Launch:
    """The steps of one launch; each pushes what undoes it."""

    def __init__(
        self,
        resolved: ResolvedServer,
        engine: Engine,
        undo: AsyncExitStack,
        tasks: TaskGroup,
        log: AuditLog | None,
    ) -> None:
        self._resolved = resolved
        self._engine = engine
        self._undo = undo
        self._tasks = tasks
        self._launch = uuid.uuid4().hex
        secrets = {secret.name: secret.value for secret in resolved.secrets}
        self._recorder = Recorder(resolved.name, self._launch, secrets)
        self._log = log
        if log is not None:
            self._recorder.sinks.append(log.write)
        self._control = ControlServer(self._recorder)

    async def run(self, *, observe: bool) -> Sandbox:
        """All steps, in order."""
        who = LaunchIdentity(self._launch, describe_owner(), self._write_secrets())
        plan = await plan_launch(self._resolved, self._engine, who=who, observe=observe)
        self._undo.callback(self._recorder.events.close)
        self._undo.push_async_callback(_shielded, self._control.close)
        link, gateway = None, None
        if plan.gateway is not None:
            link, gateway = await self._start_gateway(plan, plan.gateway)
        try:
            container = await self._create(render_create(plan, gateway), plan.image)
            sandbox = await self._attach(plan, container, link)
        except EngineRefusedError:
            await _tell_gateway_end(link)
            raise
        if link is not None:
            await check_runtime(self._engine, container, self._resolved)
            await link.wait_ready()
        self._watch(link, sandbox)
        await self._control.open(self._tasks, sandbox, os.environ, self._launch)
        await self._start_server(container)
        # Before this there is nobody to stop politely: the container is removed, running or not.
        self._undo.push_async_callback(_shielded, sandbox.stop)
        self._recorder.record(
            Started, container=container, image=plan.image.id, network=plan.network
        )
        return sandbox

    def _write_secrets(self) -> str | None:
        """Starts the watch over the launch, and writes its secret files if it has any."""
        secrets = tuple(s for s in self._resolved.secrets if s.delivery == "file")
        if secrets and not self._engine.endpoint.is_local:
            raise ConfigError(
                f"servers.{self._resolved.name}.secrets",
                f"'{secrets[0].name}' cannot be a file on the remote engine "
                f"{self._engine.endpoint}",
                'deliver it as a variable (as = "env") or use an engine on this machine',
                file=self._resolved.origin,
            )
        folder = make_secret_folder(os.environ) if secrets else None
        paths = [*list_places(os.environ, self._launch), *([str(folder)] if folder else [])]
        watchdog_of_this_process().watch(self._launch, self._engine, paths)
        self._undo.push_async_callback(_shielded, self._finish_watch)
        return self._undo.enter_context(open_secret_files(folder, secrets)) if folder else None

    async def _finish_watch(self) -> None:
        """Removes what is left of the launch; the watchdog forgets it only when nothing is."""
        with suppress(EngineError), anyio.move_on_after(REMOVE_SECONDS):
            while found := await self._engine.list_containers(self._launch):
                for container in found:
                    await self._engine.remove(container.id)
                await anyio.sleep(REMOVE_POLL_SECONDS)
            watchdog_of_this_process().done(self._launch)
        await sweep_orphans(self._engine)

    async def _start_gateway(
        self, plan: SandboxPlan, gateway: GatewayPlan
    ) -> tuple[GatewayLink, str]:
        from sandboxed_mcp.sandbox.gateway import GatewayLink  # noqa: PLC0415 - rarely needed

        container = await self._create(render_gateway(gateway), gateway.image)
        stream = await self._engine.attach(container)
        self._undo.push_async_callback(_shielded, stream.aclose)
        link = GatewayLink(plan, stream, self._recorder)
        self._undo.push_async_callback(_shielded, link.finish)
        self._tasks.start_soon(link.run)
        await link.send(gateway.control)
        await self._start(container, net_admin=True)
        return link, container

    def _watch(self, link: GatewayLink | None, sandbox: Sandbox) -> None:
        """Ends the server when its gateway ends, or its events cannot be recorded any more."""
        if link is not None:
            self._tasks.start_soon(
                _fail_after, link.ended, sandbox, lambda: f"its gateway ended: {link.failure}"
            )
        if (log := self._log) is None:
            return
        if log.failure:
            raise LaunchError(f"server '{self._resolved.name}' was not started: {log.failure}")
        self._tasks.start_soon(_fail_after, log.failed, sandbox, lambda: log.failure)

    async def _attach(self, plan: SandboxPlan, container: str, link: GatewayLink | None) -> Sandbox:
        stream = await self._engine.attach(container)
        self._undo.push_async_callback(_shielded, stream.aclose)
        exits = await self._undo.enter_async_context(
            self._engine.open_events(container, ("oom", "die"))
        )
        return Sandbox(self._engine, plan, container, stream, exits, self._recorder, link)

    async def _create(self, body: Mapping[str, Any], image: ImageFacts) -> str:
        # Cancelled half-way, a create would leave a container whose id nobody knows.
        try:
            container, warnings = await _shielded(self._engine.create, body)
        except EngineRefusedError as error:
            raise name_setting(error, self._resolved) from error
        found = await self._engine.inspect_created(container, body)
        if found is None:
            self._refuse("the container vanished before it was started")
        else:
            self._refuse(*warnings, *compare_container(body, image, found))
        return container

    async def _start_server(self, container: str) -> None:
        """Starts the server, and looks at what it really got before it gets any input."""
        self._refuse(*find_moved(self._resolved.mounts))
        pid = await self._start(container, net_admin=False)
        if pid is not None:
            ours = read_mountinfo("self")
            theirs = read_mountinfo(find_file_server(pid, container))
            if theirs:
                self._refuse(*compare_mounts(self._resolved.mounts, ours, theirs))

    async def _start(self, container: str, *, net_admin: bool) -> int | None:
        """Starts a container and looks at what its process really has, where that shows.

        Returns:
            The process id on this machine; None when this machine does not show it.
        """
        try:
            await self._engine.start(container)
        except EngineRefusedError as error:
            raise name_setting(error, self._resolved) from error
        found = await self._engine.inspect(container)
        if found is None or not self._engine.endpoint.is_local:
            return None
        pid: int = found["State"]["Pid"]
        status = read_status(pid, container)
        if status is None:
            return None
        self._refuse(*await compare_process(self._engine, container, status, net_admin=net_admin))
        return pid

    def _refuse(self, *differences: str) -> None:
        if differences:
            raise PlanMismatchError(self._resolved.name, differences)


async def _tell_gateway_end(link: GatewayLink | None) -> None:
    """Raises why the gateway ended, if that is why its network cannot be shared."""
    if link is None:
        return
    with anyio.move_on_after(GATEWAY_END_SECONDS):
        await link.ended.wait()
        await link.wait_ready()


async def _fail_after(event: anyio.Event, sandbox: Sandbox, explain: Callable[[], str]) -> None:
    await event.wait()
    await sandbox.fail(explain())


async def _shielded(step: Callable[..., Awaitable[_T]], *args: object) -> _T:
    with anyio.CancelScope(shield=True):
        return await step(*args)
    raise AssertionError("a scope that nobody cancels lets its result out")
