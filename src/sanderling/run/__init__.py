"""On the device: engines, devices and the session that runs a package. Needs no workshop and no torch."""

from sanderling.run.session import Session, load

__all__ = ["Session", "load"]
