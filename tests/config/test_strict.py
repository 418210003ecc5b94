from __future__ import annotations

import pytest

from hpcbert.config.strict import Table
from hpcbert.errors import ConfigError


def table(**values: object) -> Table:
    return Table(values, where="site.toml", path="slurm")


def test_reads_values_of_their_type() -> None:
    one = table(partition="gpu", nodes=4, exclusive=True, factor=2, args=["--x"])
    assert one.get("partition", str, "") == "gpu"
    assert one.at_least("nodes", 1, 1) == 4
    assert one.get("exclusive", bool, default=False) is True
    assert one.get("factor", float, 0.0) == 2.0
    assert one.items("args", str) == ("--x",)
    one.close()


def test_unknown_key_names_file_key_and_the_nearest_known_one() -> None:
    one = table(partiton="gpu")
    one.get("partition", str, "")
    with pytest.raises(ConfigError) as caught:
        one.close()
    assert str(caught.value) == "site.toml: slurm.partiton is not known."
    assert caught.value.hint == "Did you mean partition?"
    assert caught.value.exit_code == 2


def test_missing_and_too_small() -> None:
    with pytest.raises(ConfigError, match="name is missing"):
        table().need("name", str)
    with pytest.raises(ConfigError, match="must be at least 1, not 0"):
        table(nodes=0).at_least("nodes", 1, 1)


def test_choice_lists_what_is_allowed() -> None:
    with pytest.raises(ConfigError) as caught:
        table(runtime="pixis").choice("runtime", ("none", "pyxis"))
    assert "must be one of none, pyxis" in str(caught.value)
    assert caught.value.hint == "Did you mean pyxis?"


def test_arrays_and_tables_are_checked_inside() -> None:
    one = Table({"rules": [{"name": "rate"}], "env": {"A": 1}}, where="recipe.toml")
    (rule,) = one.tables("rules")
    assert (rule.path, rule.need("name", str)) == ("rules[1]", "rate")
    with pytest.raises(ConfigError, match=r"env\.A must be a text, not 1"):
        one.mapping("env", str)
    with pytest.raises(ConfigError, match="must be an array of tables"):
        Table({"rules": {}}, where="x").tables("rules")
    with pytest.raises(ConfigError, match="must be a table"):
        Table({"env": 3}, where="x").table("env")
