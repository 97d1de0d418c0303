"""The data plane as a Ray Serve application: replicas on the machines of a Ray cluster, as many as the load needs.

    serve run sanderling.serve.ray:application packages=/models/demo.sdl

Every replica is a pool with all packages behind the HTTP routes of the Open Inference Protocol; Ray Serve routes,
balances and starts replicas. Its proxy costs several times what the server of ``sanderling serve`` does for a request,
which pays where one machine is too small. There is neither gRPC nor shared memory through it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sanderling.core.errors import EngineError, OptionError, UnavailableError
from sanderling.run.pool import Pool
from sanderling.serve.data_plane import DataPlane
from sanderling.serve.http.asgi import Application
from sanderling.serve.http.routes import make_app
from sanderling.serve.log import Log
from sanderling.serve.server import warm
from sanderling.serve.services import Services
from sanderling.serve.settings import Settings

_DRAIN_S = 10.0


class RayOptions(BaseModel):
    """What ``serve run`` is given as ``name=value``.

    Attributes:
        packages: folders or zips, with commas between them, that every machine of the cluster has at the same place.
        policy: file, likewise.
        threads: of one call; also the cores that a replica reserves, at least one.
        min_replicas: that always run.
        max_replicas: that run under load.
        requests: that wait or run on each replica when more replicas are started.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    packages: tuple[Path, ...] = Field(min_length=1)
    policy: Path | None = None
    threads: int = Field(1, ge=0)
    min_replicas: int = Field(1, ge=1)
    max_replicas: int = Field(4, ge=1)
    requests: float = Field(8.0, gt=0)

    @field_validator("packages", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part for part in value.split(",") if part] if isinstance(value, str) else value


class Replica:
    """One replica: a pool with all packages.

    Args:
        packages: folders or zips.
        policy: file.
        threads: of one call.
    """

    def __init__(self, packages: tuple[str, ...], policy: str | None, threads: int) -> None:
        settings = Settings(tuple(map(Path, packages)), policy=Path(policy) if policy else None, threads=threads)
        self._pool = Pool(settings.policy)
        self._services = Services(settings, DataPlane(self._pool), Log())
        for path in settings.packages:
            session = self._pool.load(path, threads=threads)
            warm(session, session.manifest.name)
            self._services.plane.add(session, name=session.manifest.name)
        self._services.is_started = True

    def __serve_build_asgi_app__(self) -> Application:  # Ray Serve's name for it
        return make_app(self._services)

    def check_health(self) -> None:
        """Asked by Ray Serve now and then; a replica that fails it is replaced.

        Raises:
            EngineError: a model does not take requests.
        """
        failing = [model.label for model in self._services.plane.models if not model.is_ready]
        if failing:
            raise EngineError(f"not ready: {', '.join(failing)}; their last requests failed")

    def close(self) -> None:
        """Let requests end, and unload everything."""
        self._services.plane.is_accepting = False
        self._pool.close(drain_s=_DRAIN_S)

    def __del__(self) -> None:  # how Ray Serve ends a replica
        if hasattr(self, "_services"):
            self.close()


def application(options: dict[str, Any]) -> Any:  # noqa: ANN401 - Ray's type
    """Build the application; Ray Serve calls this.

    Args:
        options: of ``RayOptions``, by name.

    Raises:
        OptionError: an option is missing, unknown or wrong.
        UnavailableError: Ray is not installed.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise UnavailableError("Ray Serve is not installed: pip install 'sanderling[serve,ray]'") from error
    chosen = read_options(options)
    deployment = serve.deployment(
        name="sanderling",
        autoscaling_config={
            "min_replicas": chosen.min_replicas,
            "max_replicas": chosen.max_replicas,
            "target_ongoing_requests": chosen.requests,
        },
        max_ongoing_requests=max(int(4 * chosen.requests), 1),
        ray_actor_options={"num_cpus": max(chosen.threads, 1)},
        graceful_shutdown_timeout_s=_DRAIN_S,
    )(serve.ingress()(Replica))
    packages = tuple(str(path.resolve()) for path in chosen.packages)
    return deployment.bind(packages, str(chosen.policy.resolve()) if chosen.policy else None, chosen.threads)


def read_options(options: dict[str, Any]) -> RayOptions:
    """Check what ``serve run`` was given.

    Raises:
        OptionError: an option is missing, unknown or wrong.
    """
    try:
        chosen = RayOptions.model_validate(options)
    except ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(map(str, fault["loc"])) or "options"
        raise OptionError(f"{name}: {fault['msg']}; options are {', '.join(RayOptions.model_fields)}") from error
    if chosen.max_replicas < chosen.min_replicas:
        raise OptionError(
            f"max_replicas is {chosen.max_replicas}: expected at least min_replicas, {chosen.min_replicas}"
        )
    return chosen
