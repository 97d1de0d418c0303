"""The server: packages loaded and warm, its ends, and how it starts and stops."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sanderling.core.errors import EngineError, OptionError, SanderlingError, UnavailableError
from sanderling.model.package import Package
from sanderling.run.policy.document import read_policy
from sanderling.run.pool import Member, Pool
from sanderling.run.runtime import TimedEvent
from sanderling.run.text.pooled import PooledText
from sanderling.serve.admission import Admission, warm_text
from sanderling.serve.control import DESCRIPTION as CONTROL
from sanderling.serve.dashboard import DESCRIPTION as DASHBOARD
from sanderling.serve.dashboard import dashboard_routes
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.http.operations import VERSIONS
from sanderling.serve.http.routes import make_app
from sanderling.serve.http.server import HttpServer
from sanderling.serve.http.versions import version_routes
from sanderling.serve.live import Live
from sanderling.serve.log import Log
from sanderling.serve.metrics import Metrics, MetricsServer
from sanderling.serve.policy_swap import swap_policy
from sanderling.serve.repository import Repository
from sanderling.serve.rollbacks import Rollbacks
from sanderling.serve.services import Services
from sanderling.serve.settings import Settings
from sanderling.serve.shared_memory import SharedMemoryRegistry
from sanderling.serve.traces import Traces

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

_EVENTS_S = 0.25
_GRACE_S = 1.0
_OLD_DRAIN_S = 600.0  # in which what the old policy has taken may end


class End(Protocol):
    """A way to the models, such as HTTP.

    Attributes:
        port: that it listens at.
    """

    port: int

    async def start(self) -> None:
        """Listen."""

    async def stop(self, drain_s: float) -> None:
        """Take no more requests, and let those that came end."""


class Server:
    """Serves packages until it is stopped.

    Args:
        settings: what to serve, and where.

    Attributes:
        services: that its ends share.
        ends: by name, such as ``http``, once it has started.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = Pool(settings.policy)
        self.services = Services(
            settings,
            DataPlane(self.pool),
            Log(as_json=settings.log_json),
            SharedMemoryRegistry(settings.shared_memory_prefix),
        )
        self.services.plane.is_starting = True
        self.live = Live(self.services.plane)
        self.metrics = Metrics(self.services.plane)
        self._traces = Traces(self.services.log) if settings.traces else None
        if self._traces is not None:
            self.services.plane.observers.append(self._traces.observe)
        self.services.is_traced = settings.traces
        self.ends: dict[str, End] = {}
        self._reporter: asyncio.Task[None] | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        self._old_pools: list[Pool] = []
        self._repository: Repository | None = None

    async def start(self) -> None:
        """Listen, and load and warm every package; until that is done, the server says that it is not ready.

        Raises:
            SanderlingError: a package, the policy or a port cannot be used; nothing is left open then.
        """
        try:
            await asyncio.to_thread(self._check_packages)
            self._open_repository()
            await self._listen()
            await asyncio.to_thread(self._load)
        except BaseException:
            await self.stop(0.0)
            raise
        self.services.plane.is_starting = False
        self._reporter = asyncio.get_running_loop().create_task(self._report())
        self.services.is_started = True

    async def stop(self, drain_s: float | None = None) -> None:
        """Take no more requests, let those that came end within ``drain_s``, and close everything."""
        drain_s = self.settings.drain_s if drain_s is None else drain_s
        self.services.plane.is_accepting = False
        if self._reloading is not None:
            await self._reloading
        await asyncio.to_thread(self.live.close)
        await asyncio.gather(*(end.stop(drain_s) for end in self.ends.values()))
        if self._reporter is not None:
            self._reporter.cancel()
        self.services.aside.close()
        await asyncio.to_thread(self._close, drain_s if self.services.plane.pending else 0.0)

    def reload(self) -> None:
        """Look at the repository now, and follow the policy file as it is now; a bad one is refused.

        It takes a while; calls that come meanwhile are one more when it is done.
        """
        self._reload_again = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        while self._reload_again and self.services.plane.is_accepting:
            self._reload_again = False
            if not self.services.is_started:
                await asyncio.sleep(_EVENTS_S)
                self._reload_again = True
                continue
            if self._repository is not None:
                self._repository.look_now()
            if self.settings.policy is None:
                self.services.log.info("reload", "reload: the server has no policy file")
            else:
                await asyncio.to_thread(self._follow, self.settings.policy)

    def _follow(self, path: Path) -> None:
        """Let every model follow the policy file as it is now, if it has changed."""
        log, plane, old = self.services.log, self.services.plane, self.pool
        try:
            policy = read_policy(path)
            if policy == old.policy:
                log.info("reload", f"{path} is unchanged")
                return
            swap = partial(swap_policy, plane, policy, threads=self.settings.threads, warm=warm)
            moved = self._repository.move(swap) if self._repository is not None else swap()
        except (SanderlingError, OSError) as error:
            log.warning("reload-refused", f"the policy stays as it was: {error}")
            return
        self.pool = moved.pool
        log.info("policy-swapped", f"{path}: {len(moved.models)} models follow its new rules")
        self._old_pools.append(old)
        threading.Thread(target=self._let_end, args=(old,), name="sanderling-old-policy", daemon=True).start()

    def _let_end(self, pool: Pool) -> None:
        """Close a pool when what it has taken has ended."""
        time.sleep(_GRACE_S)  # in which requests begin that have just found a model of it
        pool.close(drain_s=_OLD_DRAIN_S)
        self._old_pools.remove(pool)

    def _open_repository(self) -> None:
        if self.settings.repository is None:
            return
        admission = Admission(self.pool, threads=self.settings.threads)
        self._repository = Repository(
            self.settings.repository,
            self.pool,
            self.services.plane,
            self.settings.watching,
            admission=admission,
            rollbacks=Rollbacks.of_repository(self.settings.repository),
        )
        self.services.repository = self._repository

    def _check_packages(self) -> None:
        """See what is wrong at a look, before anybody is told that there will be a server."""
        names: set[str] = set()
        for path in self.settings.packages:
            name = Package.open(path, check_hashes=False).manifest.name
            if name in names:
                raise OptionError(f"two packages are called '{name}': serve one of them, or build it with another name")
            names.add(name)

    def _load(self) -> None:
        """Load every package under its own name, and run its golden vectors once."""
        for path in self.settings.packages:
            session = load_any(self.pool, path, threads=self.settings.threads)
            warm(session, session.manifest.name)
            self.services.plane.add(session, name=session.manifest.name)
        if self._repository is not None:
            self._repository.start()

    def _close(self, drain_s: float) -> None:
        if self._repository is not None:
            self._repository.stop()
        for pool in [self.pool, *self._old_pools]:
            pool.close(drain_s=drain_s)
        if self._traces is not None:
            self._traces.close()
        if self._repository is not None:
            self._repository.close()

    async def _listen(self) -> None:
        settings = self.settings
        if settings.http_port is not None:
            extra: list[BaseRoute] = list(dashboard_routes(self.services, self.live, self.metrics))
            if self._repository is not None:
                extra += version_routes(self.services, self._repository)
            http = HttpServer(self.services, make_app(self.services, extra, [DASHBOARD, CONTROL, VERSIONS]))
            await http.start()
            self.ends["http"] = http
        if settings.metrics_port is not None:
            metrics = MetricsServer(self.metrics, settings.host, settings.metrics_port)
            await metrics.start()
            self.ends["metrics"] = metrics
        if settings.grpc_port is not None:
            from sanderling.serve.grpc_.server import GrpcServer

            grpc = GrpcServer(self.services)
            await grpc.start()
            self.ends["grpc"] = grpc

    async def _report(self) -> None:
        """Log events of the runtime: devices that were left, models that were released, batches that failed."""
        seen: TimedEvent | None = None
        while True:
            await asyncio.sleep(_EVENTS_S)
            for timed in _since(self.pool.runtime.events, seen):
                seen = timed
                event = timed.event
                message = f"{event.kind}: {event.subject}: {event.reason}"
                self.services.log.info(event.kind, message, model=timed.model, subject=event.subject)


def load_any(pool: Pool, path: Path, *, threads: int) -> Member:
    """Load a package, of a language model or of any other."""
    if Package.open(path, check_files=False).manifest.text is not None:
        return pool.load_text(path, threads=threads)
    return pool.load(path, threads=threads)


def warm(session: Member, name: str) -> None:
    """Run a package's first golden call, or write a token, so that the first request is as quick as any.

    Raises:
        EngineError: it fails.
    """
    feeds = None if isinstance(session, PooledText) else session.package.golden().call(0)
    try:
        if isinstance(session, PooledText):
            warm_text(session)
        elif feeds is not None:
            session.run(feeds)
    except SanderlingError as error:
        raise EngineError(f"package '{name}' fails its first call: {error}") from error


def serve(settings: Settings, *, started: Callable[[Server], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP looks at the repository and follows the policy file as it is.

    Args:
        settings: what to serve, and where.
        started: told once requests are taken.

    Raises:
        SanderlingError: a package, the policy or a port cannot be used.
        UnavailableError: an extra is not installed.
    """
    raise_file_limit()
    gc.collect()
    gc.freeze()  # what was imported stays: looking through it again and again would hold up requests
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(settings, started))


def raise_file_limit() -> None:
    """Take as many open files as the system allows this process: each connection is one."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError as error:
        raise UnavailableError(
            "serving needs packages that are not installed: pip install 'sanderling[serve]'"
        ) from error
    return uvloop.new_event_loop()


async def _serve(settings: Settings, started: Callable[[Server], None] | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = Server(settings)
    loop.set_exception_handler(lambda _, context: _log_fault(server, context))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, server.reload)
    starting = loop.create_task(server.start())
    waiting = loop.create_task(stopping.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # stopped while packages load
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    await starting
    if started is not None:
        started(server)
    await waiting
    server.services.log.info("stopping", f"stopping: requests may end within {settings.drain_s:g} s")
    await server.stop()
    server.services.log.info("stopped", "stopped")


def _log_fault(server: Server, context: dict[str, Any]) -> None:
    """Something failed in the event loop that nobody waits for."""
    error = context.get("exception")
    if isinstance(error, Exception):
        server.services.log.failure("fault", error)
    else:
        server.services.log.warning("fault", str(context.get("message", "")))


def _since(events: Iterable[TimedEvent], seen: TimedEvent | None) -> list[TimedEvent]:
    """Events after the last one that was seen, oldest first."""
    found: list[TimedEvent] = []
    for timed in reversed(list(events)):
        if timed is seen:
            break
        found.append(timed)
    return found[::-1]
