"""The server of the soak: `python -m benchmarks.serve.soak_server REPOSITORY POLICY`.

It has ten minutes of history when it begins: its memory grows until then, as it should, and not any more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from sanderling.serve.live import HISTORY_S
from sanderling.serve.server import Server, serve
from sanderling.serve.settings import Settings

TOKEN = "soak"


def main() -> None:
    """Serve until SIGTERM."""
    repository, policy = map(Path, sys.argv[1:])
    settings = Settings(
        (),
        policy=policy,
        http_port=0,
        grpc_port=0,
        metrics_port=None,
        repository=repository,
        token=TOKEN,
        shared_memory_prefix="/",
        threads=1,
    )
    serve(settings, started=_begin)


def _begin(server: Server) -> None:
    for _ in range(HISTORY_S):
        server.live.tick()
    print(json.dumps({"ports": {name: end.port for name, end in server.ends.items()}}), flush=True)


if __name__ == "__main__":
    main()
