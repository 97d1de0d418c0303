"""What the doctor says: a name, how bad it is, what it is about, the numbers, and what to do next."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Severity(StrEnum):
    """How bad a finding is; the most severe come first."""

    FAULT = "fault"  # results are, or will be, wrong
    WARNING = "warning"  # they may be, under the condition that the finding names
    ADVICE = "advice"  # nothing is wrong, and something could be better


class Finding(BaseModel):
    """One thing that was found.

    Attributes:
        kind: stable name, such as ``input-channel-order``.
        severity: how bad it is.
        subject: node, tensor, input, file or program that it is about.
        evidence: why it is believed, with the numbers.
        numbers: the numbers by name, for programs.
        remedy: what to do next.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    severity: Severity
    subject: str
    evidence: str
    numbers: dict[str, float] = {}
    remedy: str


class Check(BaseModel):
    """One family of checks: whether it ran, and on what, or why it did not."""

    model_config = ConfigDict(frozen=True)

    name: str
    ran: bool
    detail: str


class TargetOperators(BaseModel):
    """Which operators of a graph an engine or a target refuses, as far as that is known.

    Attributes:
        target: engine or compiler.
        basis: ``loaded`` (the engine was asked), or ``table`` (its documents or registrations were).
        accepted: whether it takes the graph.
        refused: operators with the reason.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    basis: str
    accepted: bool
    refused: dict[str, str] = {}


class Diagnosis(BaseModel):
    """Everything that was found, worst first.

    Attributes:
        healthy: no fault was found.
        checks: what was looked at, and what was not and why.
        operators: per engine and target.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    healthy: bool
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    operators: tuple[TargetOperators, ...] = ()

    def named(self, kind: str) -> list[Finding]:
        """The findings of that kind."""
        return [finding for finding in self.findings if finding.kind == kind]


def fault(kind: str, subject: str, evidence: str, remedy: str, **numbers: float) -> Finding:
    """A finding that makes results wrong."""
    return _finding(Severity.FAULT, kind, subject, evidence, remedy, numbers)


def warning(kind: str, subject: str, evidence: str, remedy: str, **numbers: float) -> Finding:
    """A finding that may make results wrong."""
    return _finding(Severity.WARNING, kind, subject, evidence, remedy, numbers)


def advice(kind: str, subject: str, evidence: str, remedy: str, **numbers: float) -> Finding:
    """A finding that could make something better."""
    return _finding(Severity.ADVICE, kind, subject, evidence, remedy, numbers)


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """The findings by severity, otherwise in the order in which they were found."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def named_first(names: list[str], *, limit: int = 5) -> str:
    """The first few of several names, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{more}"


def _finding(
    severity: Severity, kind: str, subject: str, evidence: str, remedy: str, numbers: dict[str, float]
) -> Finding:
    return Finding(
        kind=kind,
        severity=severity,
        subject=subject,
        evidence=evidence,
        numbers={name: float(value) for name, value in numbers.items()},
        remedy=remedy,
    )
