"""Settings of the whole suite.

Owns: the Hypothesis profiles, the threads of linear algebra, the cache directory of a session, and the rule that GPU
tests skip where no CUDA provider exists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Small matrices on threads that wait for each other take far longer than on one, where others use the cores, too. NumPy
# reads this when it is imported, which no plugin does before this file.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# No timing is asserted anywhere: a slow machine must not fail a property.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("long", settings.get_profile("default"), max_examples=2000, stateful_step_count=100)
# The same examples in every run: a red build is red again when it is repeated.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is cached while testing lives as long as the tests, away from the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAZYBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu where ONNX Runtime has no CUDA provider."""
    if not any(item.get_closest_marker("gpu") for item in items):
        return
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return
    skip = pytest.mark.skip(reason="ONNX Runtime has no CUDA provider here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
