"""Models of several branches: those that read pictures and texts at once, then what joins them.

A branch is a package inside the package, and has a session of its own. All sessions share a runtime, so that they never
take more cores than there are, and each has its own queue and batch size. Features go from a branch to the next as the
arrays that the engine returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from sanderling.core.closing import Closing
from sanderling.core.errors import EngineError, OptionError, PackageError, SanderlingError
from sanderling.core.machine import usable_cores
from sanderling.core.progress import Event
from sanderling.core.tensor import Feeds
from sanderling.model.manifest import Manifest
from sanderling.model.multimodal import BranchSpec, MultimodalSpec, joint_fault
from sanderling.model.package import Package
from sanderling.run.conditions import Conditions
from sanderling.run.emulation.engine import EmulatedDevices
from sanderling.run.features import Content, FeatureCache, Key
from sanderling.run.lanes import rank_lanes
from sanderling.run.policy.document import BatchTuning, Guard, Policy, Scheduling
from sanderling.run.pool import Pool
from sanderling.run.results import Outputs
from sanderling.run.runtime import Runtime
from sanderling.run.session import Session, new_runtime

DEFAULT_CACHE_BYTES = 64 << 20
DEFAULT_POLICY = Policy(
    batch_tuning=BatchTuning(max_batch_size=32),
    guard=Guard(check_finite=False),
    scheduling=Scheduling(when_full="wait"),
)


def multimodal_spec(manifest: Manifest) -> MultimodalSpec:
    """The branches of a package.

    Raises:
        OptionError: it is a package without branches.
    """
    if manifest.multimodal is None:
        raise OptionError(
            f"package '{manifest.name}' has no branches: build it with --task visual-question-answering or "
            "--task image-text-matching"
        )
    return manifest.multimodal


def open_branches(package: Package, spec: MultimodalSpec) -> dict[str, Package]:
    """The packages of all branches, checked against each other.

    Raises:
        PackageError: one is missing or broken, or its output does not fit what takes it.
    """
    opened = {
        branch.name: Package.open(package.file(f"{branch.folder}/manifest.json").parent, check_hashes=False)
        for branch in spec.branches
    }
    for name, each in opened.items():
        if len(each.manifest.outputs) != 1:
            raise PackageError(
                f"branch '{name}' of {package.path} has {len(each.manifest.outputs)} outputs: expected 1"
            )
    outputs = {name: each.manifest.outputs[0] for name, each in opened.items()}
    for branch in spec.branches:
        fault = joint_fault(branch.name, branch.takes, opened[branch.name].manifest.inputs, outputs)
        if branch.takes and fault is not None:
            raise PackageError(f"package {package.path}: {fault}; build it again")
    return opened


class Branches(Closing):
    """Runs a package of several branches. Close it, or use it in a ``with`` block.

    Args:
        package: that was opened.
        variant: id such as ``int8``; the chosen one by default.
        threads: of a call of each branch; 0 divides the cores among the branches that run at once.
        cache_bytes: of branches' outputs that are kept; 0 computes everything each time.
        at_once: run independent branches at the same time; one after the other otherwise.
        devices: by branch, the device that it prefers, such as ``gpu``; that of its plan, or the processor, otherwise.
        emulate: devices that stand in for hardware that is not here.
        pool: whose runtime and limits they share; a runtime of their own by default.

    Attributes:
        cache: of the branches' outputs.

    Raises:
        OptionError: the package has no branches, or no such variant.
        PackageError: a branch is missing or broken, or does not fit.
    """

    def __init__(
        self,
        package: Package,
        *,
        variant: str | None = None,
        threads: int = 0,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        at_once: bool = True,
        devices: Mapping[str, str] | None = None,
        emulate: EmulatedDevices | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.package = package
        self.spec = multimodal_spec(package.manifest)
        self.variant = package.variant(variant)
        self.cache = FeatureCache(cache_bytes)
        self._at_once = at_once
        self._runtime = pool.runtime if pool is not None else new_runtime(DEFAULT_POLICY)
        self._owns_runtime = pool is None
        self.sessions: dict[str, Session] = {}
        _check_names(self.spec, devices or {})
        try:
            opened = open_branches(package, self.spec)
            chosen = self.spec.variants[self.variant.id]
            for branch in self.spec.branches:
                self.sessions[branch.name] = _Opening(
                    pool, self._runtime, f"{package.manifest.name}/{branch.name}", emulate
                ).session(
                    opened[branch.name],
                    variant=chosen[branch.name],
                    threads=threads or self._threads(branch),
                    device=(devices or {}).get(branch.name),
                )
        except BaseException:
            self.close()
            raise

    @property
    def events(self) -> list[Event]:
        """What was not done as planned, of all branches."""
        return [event for session in self.sessions.values() for event in session.events]

    @property
    def copied_bytes(self) -> int:
        """Bytes copied so far between arrays and the engines of all branches."""
        return sum(session.copied_bytes for session in self.sessions.values())

    def run(self, requests: Sequence[Mapping[str, Content]]) -> list[Feeds]:
        """Run the whole graph.

        Args:
            requests: by the name of each branch that reads a picture or a text, its content.

        Returns:
            Outputs of the fusion for each request.

        Raises:
            OptionError: there is no fusion, or a request names other branches.
            SanderlingError: what is wrong with a content, or what a branch raised; nothing of it is kept.
        """
        fusion = self.spec.fusion
        if fusion is None:
            raise OptionError(f"package '{self.package.manifest.name}' has no fusion: ask each branch for its features")
        feeds = [
            {name: next(iter(found[source].values())) for name, source in fusion.takes.items()}
            for found in self.leaves(requests)
        ]
        return _all(self.sessions[fusion.name], feeds)

    def leaves(self, requests: Sequence[Mapping[str, Content]]) -> list[dict[str, Feeds]]:
        """Outputs of the branches that read pictures and texts, by their names, for each request.

        Raises:
            OptionError: a request names other branches.
            SanderlingError: as of ``run``.
        """
        names = [leaf.name for leaf in _in_order(self.spec)]
        for request in requests:
            if sorted(request) != sorted(names):
                raise OptionError(f"a request names {', '.join(sorted(request))}: expected {', '.join(sorted(names))}")
        found = self._gather([(name, request[name]) for name in names for request in requests])
        count = len(requests)
        return [{name: found[place * count + at] for place, name in enumerate(names)} for at in range(count)]

    def features(self, branch: str, contents: Sequence[Content]) -> list[Feeds]:
        """Outputs of one branch that reads pictures or texts, for each content.

        Raises:
            OptionError: there is no such branch.
            SanderlingError: as of ``run``.
        """
        _check_names(self.spec, [branch])
        return self._gather([(branch, content) for content in contents])

    def close(self) -> None:
        """Close the sessions of all branches; a second call does nothing."""
        for session in self.sessions.values():
            session.close()
        if self._owns_runtime:
            self._runtime.close(drain_s=0.0)
        self.cache.clear()

    def _threads(self, branch: BranchSpec) -> int:
        """A share of the cores for what runs beside others; all of them for what runs alone."""
        others = len(self.spec.leaves) if self._at_once and branch.modality != "fusion" else 1
        return max(usable_cores() // others, 1)

    def _gather(self, wanted: Sequence[tuple[str, Content]]) -> list[Feeds]:
        """What branches give for contents, in their order; each content is computed at most once."""
        promises: list[Future[Feeds]] = []
        mine: list[tuple[Key, Content]] = []
        try:
            for name, content in wanted:
                key = (name, content.digest)
                promise, is_mine = self.cache.claim(key)
                promises.append(promise)
                if is_mine:
                    mine.append((key, content))
            self._compute(mine)
        except BaseException:  # an interrupt: nobody may wait for ever for what is not computed
            for key, _ in mine:
                self.cache.fail(key, EngineError("what computed it was interrupted: ask again"))
            raise
        return [promise.result() for promise in promises]

    def _compute(self, jobs: Sequence[tuple[Key, Content]]) -> None:
        """Compute what was claimed: all but the last on other threads, so that this one waits for nothing meanwhile."""
        running = [
            (key, self._start(key[0], content, here=at == len(jobs) - 1 or not self._at_once))
            for at, (key, content) in enumerate(jobs)
        ]
        for key, outcome in running:
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                outputs = outcome.result() if isinstance(outcome, Future) else outcome
            except Exception as error:  # noqa: BLE001 - it is handed to all who wait, this caller among them
                self.cache.fail(key, error)
            else:
                self.cache.settle(key, outputs)

    def _start(self, branch: str, content: Content, *, here: bool) -> Future[Outputs] | Outputs | Exception:
        session = self.sessions[branch]
        try:
            feeds = content.feeds()
            return session.run(feeds) if here else session.submit(feeds, stream=object())
        except Exception as error:  # noqa: BLE001 - as above
            return error


@dataclass(frozen=True)
class _Opening:
    """Opens the sessions of branches, in a pool or on a runtime that they share."""

    pool: Pool | None
    runtime: Runtime
    name: str
    emulate: EmulatedDevices | None
    conditions: Conditions | None = None

    def make_room(self, name: str, size_bytes: int) -> None:
        """Nothing is released: all branches are needed."""

    def forget(self, session: object) -> None:
        """Nothing is kept about a session."""

    def session(self, package: Package, *, variant: str, threads: int, device: str | None) -> Session:
        if self.pool is not None:
            return self.pool.load(
                package.path, name=self.name, pinned=True, variant=variant, threads=threads, check_hashes=False
            )
        policy, emulated = DEFAULT_POLICY, None
        if device is not None:
            policy, emulated = policy.model_copy(update={"device_priorities": (device,)}), self.emulate
        plans, events = rank_lanes(package, policy, variant=variant, threads=threads, emulated=emulated)
        return Session(package, policy, plans, events, shared=self, name=self.name)


def _check_names(spec: MultimodalSpec, names: Iterable[str]) -> None:
    known = [branch.name for branch in spec.branches]
    for name in names:
        if name not in known:
            raise OptionError(f"there is no branch '{name}': available are {', '.join(known)}")


def _in_order(spec: MultimodalSpec) -> list[BranchSpec]:
    """Texts before pictures: a text's branch runs while the picture is decoded."""
    return sorted(spec.leaves, key=lambda leaf: leaf.modality != "text")


def _all(session: Session, feeds: Sequence[Feeds]) -> list[Feeds]:
    """Run several requests, joined to batches as the session's policy allows; a single one in this thread."""
    if len(feeds) == 1:
        return [session.run(feeds[0])]
    futures = []
    try:
        for each in feeds:
            futures.append(session.submit(each, stream=object()))
    except SanderlingError:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]
