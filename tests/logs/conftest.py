from functools import partial

import pytest

from tests.kit import logs


@pytest.fixture
def read(tmp_path):
    return partial(logs.read, tmp_path)
