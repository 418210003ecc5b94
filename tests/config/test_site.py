"""site.toml and recipe.toml: where they are looked for, how strictly they are read, what wins."""

from dataclasses import replace

import pytest

from hpcbert.config import places, recipe, site
from hpcbert.config.options import Options
from hpcbert.errors import ConfigError, UsageError
from tests.kit import drafts
from tests.kit.cases import cases, read_constant
from tests.kit.drafts import MINIMAL
from tests.kit.logs import write_file
from tests.kit.paths import SITE, TEMPLATES

RECIPE = (TEMPLATES / "pytorch" / "recipe.toml").read_text()
SHELL = {"SBATCH_ACCOUNT": "shell", "SLURM_ACCOUNT": "srun", "SALLOC_ACCOUNT": "salloc"}


def test_the_reference_site_has_every_key_with_its_default_and_any_editor_may_write_one(tmp_path):
    reference = site.list_origins(site.read_site(SITE, base=tmp_path, env={}))
    assert {origin for _, origin in reference.values()} == {str(SITE)}
    defaults = site.list_origins(drafts.site(tmp_path)).items()
    assert {key: value for key, (value, origin) in defaults if origin == "default"} == {
        key: reference[key][0] for key, (_, origin) in defaults if origin == "default"
    }
    # A file that Windows wrote is read, and one of another encoding refused.
    plain = drafts.site(tmp_path)
    path = tmp_path / "site.toml"
    path.write_bytes(MINIMAL.replace("\n", "\r\n").encode("utf-8-sig"))
    assert site.read_site(path, base=tmp_path, env={}) == replace(plain, where=str(path))
    path.write_bytes(b"schema = 1 # \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        site.read_site(path, base=tmp_path, env={})


def test_a_site_is_that_of_flag_variable_tree_and_xdg_in_this_order(tmp_path):
    names = "flag.toml variable/site.toml home/work/site.toml home/.config/hpcbert/site.toml"
    flag, variable, tree, xdg = (write_file(tmp_path, name, MINIMAL) for name in names.split())
    deep = tmp_path / "home/work/a/b"
    deep.mkdir(parents=True)
    env = {"HOME": str(tmp_path / "home"), "HPCBERT_SITE": str(variable.parent)}
    assert places.find_site(str(flag), env=env, cwd=deep)[0] == flag
    assert places.find_site("", env=env, cwd=deep)[0] == variable
    del env["HPCBERT_SITE"]
    assert places.find_site("", env=env, cwd=deep)[0] == tree
    tree.unlink()
    assert places.find_site("", env=env, cwd=deep)[0] == xdg
    xdg.unlink()
    default = (places.default_site(), "hpcbert's own")
    env["XDG_CONFIG_DIRS"] = ""
    assert places.find_site("", env=env, cwd=deep) == default
    # Looking upward stops at a checkout.
    write_file(tmp_path, "home/work/site.toml", MINIMAL)
    (deep.parent / ".git").mkdir()
    assert places.find_site("", env=env, cwd=deep) == default
    for name, message in ((deep, "no such file"), (deep / "absent.toml", "no such file")):
        with pytest.raises(ConfigError, match=message):
            places.find_site(str(name), env={}, cwd=tmp_path)


def test_hpcbert_runs_beats_the_file_and_blank_variables_are_none(tmp_path):
    path = write_file(tmp_path, "site.toml", MINIMAL + 'runs = "r"\n')
    runs = {
        value: site.read_site(path, base=tmp_path, env={"HPCBERT_RUNS": value}).runs
        for value in ("/else", "", "  ", "\t")
    }
    usual = str(tmp_path / "r")
    assert runs == {"/else": "/else", "": usual, "  ": usual, "\t": usual}
    blank = site.load(str(path), env={**SHELL, "SBATCH_ACCOUNT": " "}, cwd=tmp_path)
    assert blank.slurm.account == ""
    # One that no script can hold is named.
    for value in ("a\n#SBATCH --wrap=x", "\udcff"):
        with pytest.raises(ConfigError, match="SBATCH_QOS"):
            site.load(str(path), env={"SBATCH_QOS": value}, cwd=tmp_path)


@cases
def test_a_wrong_site_is_refused_by_name(tmp_path, text, keyword):
    with pytest.raises(ConfigError, match=keyword) as refusal:
        drafts.site(tmp_path, text, start="")
    assert str(tmp_path / "site.toml") in str(refusal.value)


def test_own_recipes_come_before_hpcberts(tmp_path):
    folder = write_file(tmp_path, "templates/pytorch/recipe.toml", RECIPE).parent
    first = recipe.digest(folder)
    write_file(folder, "run.sh.j2", "b")
    assert recipe.digest(folder) != first
    write_file(tmp_path, "templates/mine/recipe.toml", RECIPE)
    folders = places.recipe_folders(tmp_path / "site.toml")
    recipes = places.list_recipes(folders)
    assert recipes["pytorch"] == folder
    assert {"mine", "oneflow", "pytorch"} <= set(recipes)
    with pytest.raises(UsageError) as refusal:
        places.find_recipe("pytroch", folders)
    assert "pytorch" in refusal.value.hint


@cases
def test_a_wrong_recipe_is_refused_by_name(tmp_path, change, says):
    old, new = change
    assert old in RECIPE
    path = write_file(tmp_path, "x/recipe.toml", RECIPE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=says):
        recipe.load(path.parent)


def test_paths_are_those_of_the_sites_folder_or_of_where_they_are_typed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/one")
    (tmp_path / "mirror").mkdir()
    settings = drafts.site(tmp_path, read_constant(__file__, "SETTINGS"))
    tf2, mxnet = settings.settings("tf2"), settings.settings("mxnet")
    paths = (tf2.data, tf2.source, tf2.python, tf2.repository, tf2.image, settings.container.images)
    names = ("corpus", "program", "venv/bin/python", "mirror", "a.sqsh", "i")
    assert paths == tuple(str(tmp_path / name) for name in names)
    assert (mxnet.data, mxnet.source, mxnet.python) == ("synthetic", "", "python3.9")
    assert mxnet.repository == "https://example.org/gluon-nlp"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    options = Options(fw="tf2", data="mine", python="/opt/python")
    tf2 = site.load(str(tmp_path / "site.toml"), options).settings("tf2")
    assert (tf2.data, tf2.python) == (str(elsewhere / "mine"), "/opt/python")
    assert tf2.source == str(tmp_path / "program")
    assert site.resolve_image("~/x.sqsh", tmp_path) == "/home/one/x.sqsh"
    for text in ("/a/b.sqsh", "docker://a.b#c:1", "ubuntu", ""):
        assert site.resolve_image(text, tmp_path) == text


@cases
def test_sbatchs_variables_are_below_options_and_site(tmp_path, settings, options, account, origin):
    env = {"SBATCH_EXPORT": "NONE", "SBATCH_TIMELIMIT": "1", **SHELL}
    path = write_file(tmp_path, "site.toml", f"{MINIMAL}[slurm]\n{settings}\n")
    loaded = site.load(str(path), Options(**(options or {})), env=env, cwd=tmp_path)
    assert loaded.slurm.account == account
    assert site.list_origins(loaded)["slurm.account"][1].endswith(origin)
    assert loaded.slurm.time_limit.text == "01:00:00"
