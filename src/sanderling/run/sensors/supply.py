"""Whether the machine has mains power: the kernel's power supplies."""

from __future__ import annotations

from pathlib import Path

from sanderling.run.sensors.sysfs import line

_MAINS = ("Mains", "USB", "Wireless")
_CHARGING = ("Charging", "Full", "Not charging")  # the last: a full battery that is held, with the plug in


def on_mains(root: Path = Path("/")) -> bool | None:
    """Whether it has mains power; a machine without a battery has nothing else. None where nothing tells.

    Args:
        root: folder that holds ``sys``.

    Source: Documentation/ABI/testing/sysfs-class-power of Linux.
    """
    folder = root / "sys/class/power_supply"
    supplies = sorted(folder.iterdir()) if folder.is_dir() else []
    own = [supply for supply in supplies if line(supply / "scope") != "Device"]  # a mouse's battery is not ours
    batteries = [supply for supply in own if line(supply / "type") == "Battery"]
    if not batteries:
        return True if root.joinpath("sys").is_dir() else None
    online = [line(supply / "online") for supply in own if line(supply / "type").startswith(_MAINS)]
    if "1" in online:
        return True
    states = [line(battery / "status") for battery in batteries]
    if any(state in _CHARGING for state in states):
        return True
    return False if "Discharging" in states or "0" in online else None
