import pytest

from tests.kit.logs import Reader


@pytest.fixture
def read(tmp_path):
    return Reader(tmp_path)
