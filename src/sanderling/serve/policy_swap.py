"""Another policy for a server that runs: every model is loaded anew beside the old one, and takes its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sanderling.core.errors import PackageError, SanderlingError
from sanderling.run.policy.document import Policy
from sanderling.run.pool import Member, Pool
from sanderling.run.text.pooled import PooledText
from sanderling.serve.data_plane import DataPlane, ServedModel


class Moved(NamedTuple):
    """What a swap has changed.

    Attributes:
        pool: that follows the new policy.
        models: what takes the place of what.
    """

    pool: Pool
    models: Mapping[ServedModel, ServedModel]


def swap_policy(plane: DataPlane, policy: Policy, *, threads: int, warm: Callable[[Member, str], None]) -> Moved:
    """Let every model follow another policy from one request to the next; no request is lost.

    Requests that wait or run end by the old rules: close the pool that the plane had before when that is done. Until
    then the memory of both is held.

    Args:
        plane: whose models are loaded anew.
        policy: that they will follow.
        threads: of one call.
        warm: runs a session once, before it gets requests.

    Raises:
        SanderlingError: a model cannot be loaded by it, or fails its first call, or models have come or gone meanwhile;
            all stays as it was.
    """
    old = plane.pool
    pinned = {model.name for model in old.models if model.pinned}
    pool = Pool(policy)
    try:
        sessions: dict[ServedModel, Member] = {}
        for model in plane.models:
            before = model.session
            load = pool.load_text if isinstance(before, PooledText) else pool.load
            session = load(before.package.path, name=before.name, pinned=before.name in pinned, threads=threads)
            if session.manifest != before.manifest:
                raise PackageError(f"{before.package.path} holds another package by now: restart the server to use it")
            warm(session, model.name)
            sessions[model] = session
        return Moved(pool, plane.exchange(pool, sessions))
    except SanderlingError:
        pool.close(drain_s=0.0)
        raise
