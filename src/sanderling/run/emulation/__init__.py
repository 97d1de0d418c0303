"""Devices that are not here: how long their calls take and how warm they get. For the twin and for drills."""
