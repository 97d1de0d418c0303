"""The doctor: what is wrong with a model, its inputs or a program that runs it, named, with evidence and a remedy."""

from sanderling.measure.doctor.examine import doctor
from sanderling.measure.doctor.findings import Diagnosis, Finding, Severity
from sanderling.measure.doctor.leaks import LeakWatch, leaks

__all__ = ["Diagnosis", "Finding", "LeakWatch", "Severity", "doctor", "leaks"]
