import pytest

from tests.kit.recipes import NAMES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for a `name` once for each recipe folder."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", NAMES, scope="module")
