from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcbert.config import places, recipe, site
from hpcbert.config.options import Options
from hpcbert.config.site import resolve_image
from hpcbert.errors import ConfigError, UsageError
from tests.kit import drafts
from tests.kit.cases import cases, read_cases, read_constant

HERE = Path(__file__).parent

MINIMAL = 'schema = 1\nname = "x"\nscheduler = "slurm"\n'


def write(path: Path, text: str = MINIMAL) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_reference_site_holds_every_key_with_its_default(repository: Path, tmp_path: Path) -> None:
    reference = site.read_site(repository / "site.toml", base=tmp_path, env={})
    bare = site.read_site(write(tmp_path / "site.toml"), base=tmp_path, env={})
    settings = site.list_origins(reference)
    assert {by for _, by in settings.values()} == {str(repository / "site.toml")}
    for key, (value, by) in site.list_origins(bare).items():
        if by == "default":
            assert settings[key][0] == value, key


def test_discovery_takes_the_first_of_flag_variable_tree_and_xdg(tmp_path: Path) -> None:
    flag = write(tmp_path / "flag.toml")
    variable = write(tmp_path / "variable" / "site.toml")
    tree = write(tmp_path / "home" / "work" / "site.toml")
    xdg = write(tmp_path / "home" / ".config" / "hpcbert" / "site.toml")
    deep = tmp_path / "home" / "work" / "a" / "b"
    deep.mkdir(parents=True)
    env = {"HOME": str(tmp_path / "home"), "HPCBERT_SITE": str(variable.parent)}
    assert places.find_site(str(flag), env=env, cwd=deep)[0] == flag
    assert places.find_site("", env=env, cwd=deep)[0] == variable
    del env["HPCBERT_SITE"]
    assert places.find_site("", env=env, cwd=deep)[0] == tree
    tree.unlink()
    assert places.find_site("", env=env, cwd=deep)[0] == xdg
    xdg.unlink()
    path, by = places.find_site("", env={**env, "XDG_CONFIG_DIRS": ""}, cwd=deep)
    assert (path, by) == (places.default_site(), "hpcbert's own")


def test_looking_upward_stops_at_a_checkout(tmp_path: Path) -> None:
    write(tmp_path / "site.toml")
    inner = tmp_path / "checkout" / "src"
    inner.mkdir(parents=True)
    (tmp_path / "checkout" / ".git").mkdir()
    env = {"HOME": "/nonexistent", "XDG_CONFIG_DIRS": ""}
    assert places.find_site("", env=env, cwd=inner)[0] == places.default_site()


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in this folder"):
        places.find_site(str(tmp_path), env={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        places.find_site(str(tmp_path / "absent.toml"), env={}, cwd=tmp_path)


def test_runs_are_relative_to_the_file_and_hpcbert_runs_beats_it(tmp_path: Path) -> None:
    path = write(tmp_path / "site.toml", MINIMAL + 'runs = "r"\n')
    assert site.read_site(path, base=tmp_path, env={}).runs == str(tmp_path / "r")
    assert site.read_site(path, base=tmp_path, env={"HPCBERT_RUNS": "/else"}).runs == "/else"
    default = site.read_site(path, base=tmp_path, env={}).runs
    for blank in ("", "  ", "\t"):
        assert site.read_site(path, base=tmp_path, env={"HPCBERT_RUNS": blank}).runs == default


@pytest.mark.parametrize(("name", "text", "keyword"), read_cases(HERE / "site_faults.toml"))
def test_a_wrong_site_is_refused_by_name(
    tmp_path: Path, name: str, text: str, keyword: str
) -> None:
    path = write(tmp_path / "site.toml", text)
    with pytest.raises(ConfigError, match=keyword) as caught:
        site.read_site(path, base=tmp_path, env={})
    assert str(path) in str(caught.value)


def test_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_bytes(b"schema = 1 # \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        site.read_site(tmp_path / "site.toml", base=tmp_path, env={})


def test_a_file_that_windows_wrote(tmp_path: Path) -> None:
    text = MINIMAL.replace("\n", "\r\n")
    (tmp_path / "site.toml").write_bytes(text.encode("utf-8-sig"))
    plain = write(tmp_path / "plain.toml", MINIMAL)
    read = site.read_site(tmp_path / "site.toml", base=tmp_path, env={})
    assert read == replace(site.read_site(plain, base=tmp_path, env={}), where=read.where)


def test_own_recipes_come_before_hpcberts(tmp_path: Path, repository: Path) -> None:
    text = (repository / "templates" / "pytorch" / "recipe.toml").read_text()
    path = write(tmp_path / "templates" / "pytorch" / "recipe.toml", text)
    write(tmp_path / "templates" / "mine" / "recipe.toml", text)
    folders = places.recipe_folders(tmp_path / "site.toml")
    recipes = places.list_recipes(folders)
    assert recipes["pytorch"] == path.parent
    assert {"mine", "oneflow", "pytorch"} <= set(recipes)
    with pytest.raises(UsageError) as caught:
        places.find_recipe("pytroch", folders)
    assert "pytorch" in caught.value.hint


@cases
def test_a_wrong_recipe_is_refused_by_name(
    tmp_path: Path, repository: Path, change: tuple[str, str], says: str
) -> None:
    text = (repository / "templates" / "pytorch" / "recipe.toml").read_text()
    assert change[0] in text
    write(tmp_path / "x" / "recipe.toml", text.replace(*change, 1))
    with pytest.raises(ConfigError, match=says):
        recipe.load(tmp_path / "x")


def test_digest_follows_every_file_of_a_recipe(tmp_path: Path) -> None:
    write(tmp_path / "recipe.toml", "a")
    first = recipe.digest(tmp_path)
    write(tmp_path / "run.sh.j2", "b")
    assert recipe.digest(tmp_path) != first


SETTINGS = read_constant(__file__, "SETTINGS")


def test_paths_of_a_framework_are_those_of_the_sites_folder_and_words_stay(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    path = tmp_path / "site.toml"
    path.write_text(SETTINGS)
    found_site = site.read_site(path, base=tmp_path, env={})
    tf2, mxnet = found_site.settings("tf2"), found_site.settings("mxnet")
    paths = (tf2.data, tf2.source, tf2.python, tf2.repository)
    names = ("corpus", "program", "venv/bin/python", "mirror")
    assert paths == tuple(str(tmp_path / name) for name in names)
    assert (mxnet.data, mxnet.source, mxnet.python) == ("synthetic", "", "python3.9")
    assert mxnet.repository == "https://example.org/gluon-nlp"


def test_a_path_that_is_typed_is_relative_to_where_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.toml").write_text(SETTINGS)
    path = tmp_path / "elsewhere"
    path.mkdir()
    monkeypatch.chdir(path)
    options = Options(fw="tf2", data="mine", python="/opt/python")
    tf2 = site.load(str(tmp_path / "site.toml"), options).settings("tf2")
    assert (tf2.data, tf2.python) == (str(path / "mine"), "/opt/python")
    assert tf2.source == str(tmp_path / "program")


SHELL = {"SBATCH_ACCOUNT": "shell", "SLURM_ACCOUNT": "srun", "SALLOC_ACCOUNT": "salloc"}


@pytest.mark.parametrize(
    ("settings", "options", "env", "account", "origin"),
    [
        ("", Options(), SHELL, "shell", "SBATCH_ACCOUNT"),
        ("account = ''", Options(), SHELL, "shell", "SBATCH_ACCOUNT"),
        ("account = 'site'", Options(), SHELL, "site", "site.toml"),
        ("", Options(account="typed"), SHELL, "typed", "default"),
        ("sbatch_args = ['-Asite']", Options(), SHELL, "", "default"),
        ("", Options(sbatch_arg=("--account=typed",)), SHELL, "", "default"),
        ("", Options(), {**SHELL, "SBATCH_ACCOUNT": " "}, "", "default"),
        ("", Options(), {"SBATCH_EXPORT": "NONE", "SBATCH_TIMELIMIT": "1"}, "", "default"),
    ],
    ids=["shell", "empty key", "site", "option", "argument", "typed argument", "blank", "others"],
)
def test_sbatchs_variables_are_below_options_and_site(
    tmp_path: Path,
    *,
    settings: str,
    options: Options,
    env: dict[str, str],
    account: str,
    origin: str,
) -> None:
    path = write(tmp_path / "site.toml", f"{MINIMAL}[slurm]\n{settings}\n")
    loaded = site.load(str(path), options, env=env, cwd=tmp_path)
    assert loaded.slurm.account == account
    assert site.list_origins(loaded)["slurm.account"][1].endswith(origin)
    assert loaded.slurm.time_limit.text == "01:00:00"


@pytest.mark.parametrize(
    "value", ["a\n#SBATCH --wrap=x", "\udcff"], ids=["line break", "not Unicode"]
)
def test_a_variable_that_no_script_can_hold_is_named(tmp_path: Path, value: str) -> None:
    path = write(tmp_path / "site.toml")
    with pytest.raises(ConfigError, match="SBATCH_QOS"):
        site.load(str(path), env={"SBATCH_QOS": value}, cwd=tmp_path)


# --- Container ------------------------------------------------------------------------------------


def test_a_relative_file_is_relative_to_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/one")
    assert resolve_image("./x.sqsh", tmp_path) == str(tmp_path / "x.sqsh")
    assert resolve_image("~/x.sqsh", tmp_path) == "/home/one/x.sqsh"
    for text in ("/a/b.sqsh", "docker://a.b#c:1", "ubuntu", ""):
        assert resolve_image(text, tmp_path) == text


def test_paths_of_a_site_are_relative_to_its_file(tmp_path: Path) -> None:
    site = drafts.site(tmp_path, '[container]\nimages = "i"\n[frameworks.a]\nimage = "./a.sqsh"\n')
    assert site.container.images == str(tmp_path / "i")
    assert site.settings("a").image == str(tmp_path / "a.sqsh")


@cases
def test_a_wrong_container_key_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        drafts.site(tmp_path, f"[container]\n{text}\n")
