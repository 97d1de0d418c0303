"""The `README.md` of an exported folder: what was verified, on what, what remains, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def readme(record: Mapping[str, Any]) -> str:
    """Write a record of an export for people."""
    package = record["package"]
    lines = [
        f"# {package['name']} for {record['target']} ({record['device']})",
        "",
        f"Written by Sanderling {record['sanderling']} with {record['tool']}.",
        "`export.json` says the same for programs.",
        "",
        "## Verified here",
        "",
        *(f"- {proof_line(proof)}" for proof in record["proofs"]),
        "",
        "## Only the device can show",
        "",
        *(f"- {item}" for item in record["remaining"]),
        "",
        *_notes(record["notes"]),
        "## Next",
        "",
        "```",
        *record["next_steps"],
        "```",
        "",
        "## Files",
        "",
        "| file | what it is | bytes |",
        "|---|---|---:|",
        *(f"| `{name}` | {file['what']} | {file['size_bytes']:,} |" for name, file in record["files"].items()),
        "",
    ]
    return "\n".join(lines)


def _notes(notes: Sequence[str]) -> list[str]:
    return ["## Notes", "", *(f"- {note}" for note in notes), ""] if notes else []


def proof_line(proof: Mapping[str, Any]) -> str:
    """A proof of a record in one line."""
    value = "" if proof["value"] is None else f": {proof['value']:.4g}"
    limit = "" if proof["limit"] is None else f" (limit {proof['limit']:.4g})"
    return f"{proof['what']}, on {proof['on']}{value}{limit}"
