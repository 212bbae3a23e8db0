"""A plugin of pytest for runs with a fault: the copy's product is tested, and random examples are always the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

#: The first example that fails is enough, and a fault that is caught once is caught the next time as well.
settings.register_profile(
    "seeded faults",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    database=None,
)


def pytest_configure(config: pytest.Config) -> None:
    """:raises pytest.UsageError: the product that would be tested is not the copy's"""
    import mama_spark

    product = Path(mama_spark.__file__).resolve()
    if not product.is_relative_to(config.rootpath.resolve()):
        raise pytest.UsageError(f"{product} would be tested, which is not below {config.rootpath}")
