"""The repository: a folder of packages that is watched. What changes there is checked, loaded, and takes over.

A version that is worse than it says never gets a request, one that turns out worse is taken back, and the version
before stays loaded for a while: going back is one assignment. What lies where is said in ``serve/sources.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sanderling.core.errors import InputError, NotMetError, OptionError, SanderlingError
from sanderling.core.files import sha256_of
from sanderling.core.progress import Event
from sanderling.model.package import MANIFEST, Package
from sanderling.run.pool import Pool
from sanderling.serve.admission import Admission
from sanderling.serve.canary_trial import CanaryTrial
from sanderling.serve.data_plane import DataPlane, Finished, ServedModel
from sanderling.serve.descriptions import describe_repository
from sanderling.serve.errors import ConflictError, NotFoundError
from sanderling.serve.folder_view import FolderView
from sanderling.serve.policy_swap import Moved
from sanderling.serve.repository_settings import RepositorySettings
from sanderling.serve.rollbacks import Rollbacks
from sanderling.serve.rotation import Rotation, Version
from sanderling.serve.sources import Source, check_name
from sanderling.serve.version_policy import VersionPolicy

_TRIAL_S = 0.25
_FINAL = (InputError, NotMetError)  # what is wrong with the package itself
_END_S = 5.0


class Repository:
    """Watches a folder of packages, and keeps a data plane as the folder is. Close it after the pool.

    Args:
        root: the folder.
        pool: that holds the versions.
        plane: through which requests reach them.
        settings: see there.
        admission: that checks and loads versions; one with its copies in the cache by default.
        rollbacks: that were kept; none are by default.
        now_s: monotonic clock.

    Raises:
        OptionError: there is no such folder.
        OutputError: copies cannot be written.
    """

    def __init__(
        self,
        root: Path,
        pool: Pool,
        plane: DataPlane,
        settings: RepositorySettings | None = None,
        *,
        admission: Admission | None = None,
        rollbacks: Rollbacks | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not root.is_dir():
            raise OptionError(f"repository {root} is no folder: expected one with packages (NAME.sdl) in it")
        self.root = root
        self.settings = settings or RepositorySettings()
        self._pool = pool
        self._plane = plane
        self._admission = admission or Admission(pool)
        self._rollbacks = rollbacks
        self._now_s = now_s
        self._changing = threading.RLock()  # held while versions are checked and loaded, which takes its time
        self._lock = threading.RLock()  # held for moments, while the roles of versions change
        self._rotations: dict[str, Rotation] = {}
        self._folder = FolderView(root, settle_s=self.settings.settle_s, gone_s=self.settings.gone_s, now_s=self._now_s)
        self._loading: tuple[str, int] | None = None
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._is_hurried = False
        self._alarm = threading.Event()
        self._threads: list[threading.Thread] = []
        plane.observers.append(self._observe)

    def start(self) -> None:
        """Load what is there, and watch the folder from now on."""
        self.scan(patient=False)
        for target, name in ((self._watch, "sanderling-repository"), (self._tend_trials, "sanderling-canary")):
            thread = threading.Thread(target=target, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def look_now(self) -> None:
        """Let the watch look at the folder at once; what is there counts as whole."""
        self._is_hurried = True
        self._wake.set()

    def stop(self) -> None:
        """Watch no longer; what is loaded stays."""
        self._stopping.set()
        self._wake.set()
        self._alarm.set()
        for thread in self._threads:
            thread.join(_END_S)

    def close(self) -> None:
        """Watch no longer, and remove the copies: nothing may be loaded from them any more."""
        self.stop()
        if self._observe in self._plane.observers:
            self._plane.observers.remove(self._observe)
        self._admission.close()

    def scan(self, *, patient: bool = True) -> None:
        """Look at the folder once, and do what follows.

        Args:
            patient: wait until a package has not changed for a while.
        """
        with self._changing:
            if not self._look():
                return
            for name in sorted({name for name, _ in self._folder.sources} | set(self._rotations)):
                self._update(self._rotations.setdefault(name, Rotation(name)), patient=patient)
            self._retire()

    def move(self, swap: Callable[[], Moved]) -> Moved:
        """Swap the pool and what is loaded, while nothing comes or goes.

        Args:
            swap: does it.

        Returns:
            What that returns.
        """
        with self._changing:
            moved = swap()
            with self._lock:
                self._pool = moved.pool
                self._admission.move(moved.pool)
                for rotation in self._rotations.values():
                    for version in rotation.versions.values():
                        if version.served is not None:
                            version.served = moved.models[version.served]
            return moved

    def tend(self) -> None:
        """Decide about the canaries."""
        with self._lock:
            for rotation in list(self._rotations.values()):
                if rotation.trial is None:
                    continue
                decision = rotation.trial.judge()
                if decision.action == "promote":
                    self._promote(rotation, rotation.canary, "canary-promoted", decision.reason)
                elif decision.action == "roll-back":
                    self._end_trial(rotation, decision.reason)

    def index(self, *, ready_only: bool = False) -> tuple[dict[str, str], ...]:
        """All versions that are served, were refused, or could be loaded.

        Args:
            ready_only: only those that take requests.

        Returns:
            ``name``, ``version``, ``state`` (READY, LOADING or UNAVAILABLE) and ``reason`` of each.
        """
        entries = {(entry["name"], entry["version"]): entry for entry in describe_repository(self._plane)}
        with self._lock:
            for rotation in self._rotations.values():
                for number, reason in _absent(rotation).items():
                    key = rotation.name, str(number)
                    entries.setdefault(key, _entry(*key, "UNAVAILABLE", reason))
            if self._loading is not None:
                key = self._loading[0], str(self._loading[1])
                entries[key] = _entry(*key, "LOADING", "")
        return tuple(entry for _, entry in sorted(entries.items()) if not ready_only or entry["state"] == "READY")

    def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load what the folder has of a model now, also versions that were refused or rolled back before.

        Raises:
            OptionError: the name is none, or there are parameters: a package holds its configuration itself.
            NotFoundError: the folder has no such model.
            SanderlingError: why its newest version was refused.
        """
        check_name(name)
        for parameter in parameters or {}:
            raise OptionError(
                f"parameter '{parameter[:60]}' of load is refused: a package holds its configuration and files itself; "
                "put another package into the repository"
            )
        with self._changing:
            self._look()
            if not self._folder.versions(name):
                there = ", ".join(sorted({known for known, _ in self._folder.sources})) or "none"
                raise NotFoundError(f"the repository has no model '{name}': available are {there}")
            rotation = self._rotations.setdefault(name, Rotation(name))
            with self._lock:
                rotation.is_off = False
                rotation.shelved.clear()
                rotation.refused.clear()
            self._folder.forget_tries(name)
            self._keep(name, lambda kept: kept.forget(name))
            self._update(rotation, patient=False)
            self._retire()
            if rotation.refused:
                raise rotation.refused[max(rotation.refused)]
            if not rotation.loaded:
                raise ConflictError(f"model '{name}' has no version that is to be served: see --versions")

    def unload(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Take all versions of a model away until ``load`` is called; what waits and runs ends before.

        Raises:
            OptionError: the name or a parameter is none.
            NotFoundError: no such model is loaded.
        """
        check_name(name)
        for parameter in set(parameters or {}) - {"unload_dependents"}:
            raise OptionError(f"parameter '{parameter[:60]}' of unload is unknown: expected unload_dependents")
        with self._changing:
            rotation = self._loaded_rotation(name)
            rotation.is_off = True
            self._take_down(rotation, "asked for")

    def rollback(self, name: str, *, reason: str = "asked for") -> str:
        """Go back to the version before, at once where it is still loaded; a canary is ended instead.

        The version that is left does not come again by itself: it takes another package, or ``load``.

        Returns:
            The version that requests get now.

        Raises:
            NotFoundError: no such model is loaded.
            ConflictError: there is no earlier version, or it cannot be loaded.
        """
        check_name(name)
        with self._lock:
            done = self._rolled_back(self._loaded_rotation(name), reason)
        if done:
            return done
        with self._changing:
            rotation = self._loaded_rotation(name)
            with self._lock:  # what was waited for may have loaded it, or begun a canary
                done = self._rolled_back(rotation, reason)
            if done:
                return done
            target = rotation.fallback or self._lower(rotation)
            if not target:
                raise ConflictError(f"model '{name}' has no version before {rotation.default}: nothing to go back to")
            if not self._admit(rotation, target):
                raise ConflictError(f"{name}:{target} cannot be loaded again: {rotation.refused[target]}")
            with self._lock:
                rotation.earlier = [*rotation.earlier, target]
                return self._rolled_back(rotation, reason)

    def promote(self, name: str) -> str:
        """Let a canary get all requests now.

        Returns:
            Its version.

        Raises:
            NotFoundError: no such model is loaded.
            ConflictError: it has no canary.
        """
        check_name(name)
        with self._lock:
            rotation = self._loaded_rotation(name)
            if rotation.trial is None:
                raise ConflictError(f"model '{name}' has no canary: version {rotation.default} gets all requests")
            self._promote(rotation, rotation.canary, "canary-promoted", "asked for")
            return str(rotation.default)

    def _loaded_rotation(self, name: str) -> Rotation:
        rotation = self._rotations.get(name)
        if rotation is None or not rotation.loaded:
            there = ", ".join(sorted(known.name for known in list(self._rotations.values()) if known.loaded)) or "none"
            raise NotFoundError(f"the repository has no model '{name}' loaded: loaded are {there}")
        return rotation

    def _look(self) -> bool:
        """Read the folder; False where it is not there."""
        is_there, faults = self._folder.look()
        for fault in faults:
            self._tell("package-misplaced", fault.subject, fault.reason)
        return is_there

    def _update(self, rotation: Rotation, *, patient: bool) -> None:
        """Bring a model to where the folder is."""
        if rotation.is_off:
            return
        wanted = self._wanted(rotation, patient=patient)
        while not all(self._admit(rotation, number) for number in wanted if number not in rotation.loaded):
            wanted = self._wanted(rotation, patient=patient)
        if not wanted and rotation.loaded:
            self._take_down(rotation, "its package was deleted")
        with self._lock:
            loaded = [number for number in wanted if number in rotation.loaded and number not in rotation.shelved]
            if loaded and loaded[-1] not in (rotation.default, rotation.canary):
                self._follow(rotation, loaded[-1], is_default_there=rotation.default in wanted or rotation.counted > 0)
            rotation.schedule(set(wanted), now_s=self._now_s(), grace_s=self.settings.grace_s)
            if not (rotation.loaded or rotation.refused):
                del self._rotations[rotation.name]

    def _wanted(self, rotation: Rotation, *, patient: bool) -> tuple[int, ...]:
        """Versions that should be loaded, the one that gets the requests last."""
        versions = self.settings.versions
        if rotation.counted or (rotation.name, 0) in self._folder.sources:
            versions = VersionPolicy(latest=1 if versions.specific else versions.latest)
        return versions.wanted(self._available(rotation, patient=patient))

    def _available(self, rotation: Rotation, *, patient: bool) -> set[int]:
        """Versions that are loaded and still in the folder, or look as if they could be loaded."""
        sources = self._folder.versions(rotation.name)
        rotation.refused = {
            number: error for number, error in rotation.refused.items() if number in sources or 0 in sources
        }
        found = {
            number
            for number in rotation.loaded
            if self._folder.is_there(rotation.name, 0 if rotation.counted else number)
        }
        for version, source in sources.items():
            if version in rotation.loaded:
                self._check_unchanged(rotation, source)
                continue
            is_known = self._folder.was_tried(source) and (not version or version in rotation.refused)
            if not is_known and self._folder.is_settled(source, patient=patient):
                found.add(version or rotation.counted + 1)
        return found - rotation.shelved

    def _check_unchanged(self, rotation: Rotation, source: Source) -> None:
        """Tell that a numbered package holds something else now; what was loaded stays."""
        version = rotation.versions[source.version]
        if version.stamp == source.stamp or self._folder.was_tried(source):
            return
        self._folder.note_tried(source)
        try:
            package = self._admission.copy(source.path)
            is_same = _digest(package) == version.digest
            self._admission.drop(package)
        except SanderlingError:
            is_same = False
        if not is_same:
            reason = "its files were changed, which numbered versions never are; give them a new number"
            self._tell("version-changed", f"{rotation.name}:{source.version}", reason, rotation.name)

    def _admit(self, rotation: Rotation, number: int) -> bool:
        """Check and load a version; False, with an event, where it is refused."""
        name, known = rotation.name, rotation.versions.get(number)
        sources = self._folder.versions(name)
        source = sources.get(number) or sources.get(0)
        package = known.package if known is not None else None
        self._loading = name, number
        try:
            if package is None:
                assert source is not None
                self._folder.note_tried(source)
                package = self._admission.copy(source.path)
                if not source.version and self._is_known(rotation, package):
                    self._admission.drop(package)
                    return False
                if self._rollbacks is not None and self._rollbacks.is_bad(name, _digest(package)):
                    kept = None if source.version or rotation.loaded else self._rollbacks.earlier(name)
                    if kept is not None or source.version or rotation.loaded:
                        self._shelve(rotation, number + 1 if kept else number, source, package)
                        if kept is None:
                            return False
                        source, package = None, self._admission.copy(kept)
            served = self._serve(rotation, number, package)
        except SanderlingError as error:
            self._refuse(rotation, number, error, source)
            if package is not None and known is None:
                self._admission.drop(package)
            return False
        finally:
            self._loading = None
        with self._lock:
            rotation.refused.pop(number, None)
            stamp = source.stamp if source is not None else ()
            rotation.versions[number] = Version(number, stamp, _digest(package), package, served)
            if source is not None and not source.version:
                rotation.counted = max(rotation.counted, number)
        session = served.session
        reason = f"hashes and golden vectors hold; it runs on {session.engine}/{session.device}/{session.variant.id}"
        self._tell("version-loaded", served.label, reason, name)
        return True

    def _shelve(self, rotation: Rotation, number: int, source: Source, package: Package) -> None:
        """Do not serve what was rolled back before a restart, nor keep its copy."""
        with self._lock:
            rotation.shelved.add(number)
            rotation.versions[number] = Version(number, source.stamp, _digest(package), None)
            rotation.counted = max(rotation.counted, 0 if source.version else number)
        self._admission.drop(package)
        reason = "it was rolled back before the server was started again"
        self._tell("version-shelved", f"{rotation.name}:{number}", reason, rotation.name)

    def _keep(self, name: str, change: Callable[[Rollbacks], None]) -> None:
        """Change what is kept over a restart; that it cannot be is told."""
        if self._rollbacks is None:
            return
        try:
            change(self._rollbacks)
        except SanderlingError as error:
            self._tell("rollback-not-kept", name, str(error), name)

    def _keep_rollback(self, rotation: Rotation, number: int) -> None:
        """Keep over a restart that a version was rolled back to the default."""
        bad, earlier = rotation.versions.get(number), rotation.versions.get(rotation.default)
        if bad is None or earlier is None or earlier.package is None:
            return
        digest, package = bad.digest, earlier.package if rotation.counted else None
        self._keep(rotation.name, lambda kept: kept.note(rotation.name, digest, package))

    def _refuse(self, rotation: Rotation, number: int, error: SanderlingError, source: Source | None) -> None:
        """Note why a version is not loaded; one that may be whole is tried again, though nothing changes in it."""
        with self._lock:
            rotation.refused[number] = error
        if source is not None and not isinstance(error, _FINAL):
            self._folder.try_later(source)
        self._tell("version-refused", f"{rotation.name}:{number}", str(error), rotation.name)

    def _serve(self, rotation: Rotation, number: int, package: Package) -> ServedModel:
        beside = rotation.loaded.get(rotation.default)
        session = self._admission.load(package, f"{rotation.name}:{number}", beside=beside.label if beside else "")
        try:
            return self._plane.add(session, name=rotation.name, version=str(number))
        except SanderlingError:
            session.close()
            raise

    def _is_known(self, rotation: Rotation, package: Package) -> bool:
        """Whether a package that was written again is the one that is served, or one that was rolled back."""
        digest = _digest(package)
        return any(
            version.digest == digest
            for number, version in rotation.versions.items()
            if number in rotation.shelved or number in (rotation.default, rotation.canary)
        )

    def _follow(self, rotation: Rotation, number: int, *, is_default_there: bool) -> None:
        """Let a newer version get the requests, or a share of them first."""
        rules = self.settings.canary
        if rules is None or number < rotation.default or not rotation.default or not is_default_there:
            reason = f"instead of {rotation.default}" if rotation.default else "the first one"
            self._promote(rotation, number, "version-swapped", reason)
            return
        self._plane.set_canary(rotation.name, str(number), rules.share)
        rotation.trial = CanaryTrial(rules, str(rotation.default), str(number), self._now_s)
        reason = f"it gets {100 * rules.share:g} % of the requests of version {rotation.default}"
        self._tell("canary-began", f"{rotation.name}:{number}", reason, rotation.name)
        self._alarm.set()

    def _promote(self, rotation: Rotation, number: int, kind: str, reason: str) -> None:
        self._plane.set_default(rotation.name, str(number))
        if rotation.default:
            self._keep(rotation.name, lambda kept: kept.move_on(rotation.name))
        rotation.promote(number)
        rotation.schedule(set(), now_s=self._now_s(), grace_s=self.settings.grace_s)
        self._tell(kind, f"{rotation.name}:{number}", reason, rotation.name)

    def _end_trial(self, rotation: Rotation, reason: str) -> None:
        number = rotation.canary
        self._plane.set_canary(rotation.name, str(number), 0.0)
        rotation.shelved.add(number)
        self._keep_rollback(rotation, number)
        rotation.trial = None
        rotation.schedule(set(), now_s=self._now_s(), grace_s=self.settings.grace_s)
        self._tell("canary-rolled-back", f"{rotation.name}:{number}", reason, rotation.name)

    def _rolled_back(self, rotation: Rotation, reason: str) -> str:
        """End the canary, or go back to the earlier version if it is loaded; the version served then, else nothing."""
        if rotation.trial is not None:
            self._end_trial(rotation, reason)
            return str(rotation.default)
        if rotation.fallback not in rotation.loaded:
            return ""
        shelved = rotation.go_back()
        self._keep_rollback(rotation, shelved)
        self._plane.set_default(rotation.name, str(rotation.default))
        rotation.schedule(set(), now_s=self._now_s(), grace_s=self.settings.grace_s)
        self._tell("version-rolled-back", f"{rotation.name}:{shelved}", reason, rotation.name)
        return str(rotation.default)

    def _lower(self, rotation: Rotation) -> int:
        """The highest numbered version in the folder below the one that is served; 0 where there is none."""
        numbers = self._folder.versions(rotation.name).keys() - rotation.shelved
        return max((number for number in numbers if 0 < number < rotation.default), default=0)

    def _take_down(self, rotation: Rotation, reason: str) -> None:
        """Unload all versions of a model, the one that gets the requests last."""
        with self._lock:
            leaving = sorted(rotation.loaded.items(), key=lambda item: item[0] == rotation.default)
            packages = [version.package for version in rotation.versions.values() if version.package is not None]
            rotation.take_down()
        for _, model in leaving:
            self._plane.remove(model.name, model.version)
        for package in packages:
            self._admission.drop(package)
        self._tell("model-unloaded", rotation.name, reason, rotation.name)

    def _retire(self) -> None:
        """Unload versions whose time has come, and remove copies that nothing needs."""
        for rotation in list(self._rotations.values()):
            with self._lock:
                due = rotation.take_due(self._now_s())
            for model in due:
                self._plane.remove(model.name, model.version)
                reason = f"another version has served for {self.settings.grace_s:g} s"
                self._tell("version-unloaded", model.label, reason, model.name)
            with self._lock:
                packages = rotation.take_copies()
            for package in packages:
                self._admission.drop(package)

    def _observe(self, finished: Finished) -> None:
        rotation = self._rotations.get(finished.model)
        trial = rotation.trial if rotation is not None else None
        if trial is not None and trial.count(finished):
            self._alarm.set()

    def _tell(self, kind: str, subject: str, reason: str, model: str = "") -> None:
        self._pool.runtime.tell(Event(kind=kind, subject=subject, reason=reason), model=model)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self.settings.interval_s)
            self._wake.clear()
            if not self._stopping.is_set():
                is_hurried, self._is_hurried = self._is_hurried, False
                self._survive(partial(self.scan, patient=not is_hurried))

    def _tend_trials(self) -> None:
        while not self._stopping.is_set():
            has_trials = any(rotation.trial is not None for rotation in list(self._rotations.values()))
            self._alarm.wait(_TRIAL_S if has_trials else None)
            self._alarm.clear()
            self._survive(self.tend)

    def _survive(self, call: Callable[[], None]) -> None:
        """Go on watching whatever happens; nobody else would say that it has ended."""
        try:
            call()
        except SanderlingError as error:
            self._tell("repository-failed", str(self.root.name), str(error))
        except Exception as error:  # noqa: BLE001 - shown as any thread's
            shown = (type(error), error, error.__traceback__, threading.current_thread())
            threading.excepthook(threading.ExceptHookArgs(shown))


def _entry(name: str, version: str, state: str, reason: str) -> dict[str, str]:
    return {"name": name, "version": version, "state": state, "reason": reason}


def _absent(rotation: Rotation) -> dict[int, str]:
    """Versions that take no requests, with the reason."""
    unloaded = {number: "unloaded" for number, version in rotation.versions.items() if version.served is None}
    rolled_back = dict.fromkeys(rotation.shelved, "rolled back")
    return unloaded | rolled_back | {number: str(error) for number, error in rotation.refused.items()}


def _digest(package: Package) -> str:
    return sha256_of(package.path / MANIFEST)
