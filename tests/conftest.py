"""For all tests: hypothesis makes the same examples in every run, and a machine that stalls fails none of them."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
