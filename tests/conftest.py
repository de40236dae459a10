"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A machine that is busy with much else is no failure: how long an example takes is not what any test says.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
