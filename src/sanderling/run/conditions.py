"""What the sensors say, brought to the runtime: temperatures to the devices they belong to, energy to the requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sanderling.core.progress import Event
from sanderling.run.policy.document import Policy
from sanderling.run.runtime import Runtime
from sanderling.run.sensors import Reading, Sampler, Sensors, device_temperature


class Conditions:
    """Reads the sensors every interval until it is closed.

    A device whose temperature the policy limits and that no sensor shows is one ``temperature-unknown`` event: its
    limit cannot be kept.

    Args:
        runtime: that is told.
        policy: with thresholds and sensors by device.
        devices: kind by name of device.
        sensors: to read.
        receive: given every reading as well.

    Attributes:
        first: reading.
        last: reading.
        temperatures_c: of the devices that a sensor shows, at the last reading.
    """

    def __init__(
        self,
        runtime: Runtime,
        policy: Policy,
        devices: Mapping[str, str],
        sensors: Sensors,
        *,
        receive: Callable[[Reading], None] | None = None,
    ) -> None:
        self.first: Reading | None = None
        self.last: Reading | None = None
        self.temperatures_c: dict[str, float] = {}
        self._runtime = runtime
        self._policy = policy
        self.devices = dict(devices)
        self._also = receive
        self._unknown: set[str] = set()
        self._sampler = Sampler(sensors, policy.sensor_interval / 1e3, self._receive, runtime.tell)

    def _receive(self, reading: Reading) -> None:
        self.first = self.first or reading
        self.last = reading
        temperatures_c: dict[str, float] = {}
        for device, kind in dict(self.devices).items():
            threshold = self._policy.threshold(device, kind)
            found = device_temperature(reading.temperatures, kind, threshold.sensor)
            if found is not None:
                temperatures_c[device] = found
                self._unknown.discard(device)
            elif threshold.temp is not None and device not in self._unknown:
                self._unknown.add(device)
                seen = ", ".join(each.sensor for each in reading.temperatures) or "none"
                reason = f"the policy leaves it at {threshold.temp:g} °C and no sensor shows it; sensors here: {seen}"
                self._runtime.tell(Event(kind="temperature-unknown", subject=device, reason=reason))
        self.temperatures_c = temperatures_c
        self._runtime.sense(temperatures_c)
        if self._also is not None:
            self._also(reading)

    def close(self) -> None:
        """End the reading."""
        self._sampler.close()


def limits_heat(policy: Policy) -> bool:
    """Whether a policy names any temperature."""
    return any(threshold.temp is not None for threshold in policy.fallback_thresholds.values())
