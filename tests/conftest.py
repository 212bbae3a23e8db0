"""What holds for all tests."""

from hypothesis import HealthCheck, settings

from tests.support.examples import EVERY_DAY, FULL

pytest_plugins = ["scripts.test_times"]

# No deadlines and no "too slow": how long an example takes says nothing where others work too.
settings.register_profile(
    "every day", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=EVERY_DAY
)
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
settings.load_profile("full" if FULL else "every day")
