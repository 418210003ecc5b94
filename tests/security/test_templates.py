"""A recipe folder that came from somebody runs nothing on the login node."""

import re
import shutil
import signal
from pathlib import Path

from tests.kit.cli import Cli, run
from tests.kit.paths import TEMPLATES
from tests.kit.waiting import CEILING, until


def test_no_template_gets_out_and_what_recipes_need_still_works(tmp_path, monkeypatch):
    """It is of a recipe beside a site.toml in the working directory."""
    (tmp_path / "site.toml").write_text('schema = 1\nname = "t"\nscheduler = "slurm"\n')
    shutil.copytree(TEMPLATES / "pytorch", tmp_path / "templates/mine")
    monkeypatch.chdir(tmp_path)
    body = tmp_path / "templates/mine/run.sh.j2"

    def refuse(template, *words):
        body.write_text(f"set -e\n{template}\n")
        result = run(*words, "--fw", "mine", "--json")
        assert result.returncode == 2, (template, result)
        message = result.error["message"]
        assert message.startswith(str(body)), message
        assert not Path("sprung").exists(), template
        assert not Path("runs").exists(), template
        return message

    # One template a line: Jinja's and Python's ways out, as lists of template injections have them.
    escapes = Path(__file__).with_name("escapes.txt").read_text().splitlines()
    for template in escapes:
        message = refuse(template, "render")
        is_of_a_file = re.search("include|raw|import", template)
        assert is_of_a_file or f"{body}:2: A template" in message, (template, message)
    # An endless recursion is an error, and an interrupt ends an endless template.
    for template in (
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% include 'mine/run.sh.j2' %}",
    ):
        assert "A template is wrong" in refuse(template, "render")
        refuse(escapes[3], "submit", "--dry-run")
    body.write_text(
        "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}\n"
    )
    with Cli(Path.cwd()).start("render", "--fw", "mine") as process:
        maps = Path(f"/proc/{process.pid}/maps")
        until(lambda: "markupsafe" in maps.read_text(), "Jinja is loaded")
        process.send_signal(signal.SIGINT)
        assert process.wait(CEILING) == 130
    body.write_text(
        "{% set ns = namespace(n=0) %}{% for i in range(8) %}{% set ns.n = ns.n + 2**i %}{% endfor %}\n"
        "echo {{ ns.n }} {{ gcd(12, 18) }} {{ point.key }} {{ range(3)|join(',') }} {{ 'a b'.upper() }}\n"
    )
    result = run("render", "--fw", "mine", status=0)
    assert "echo 255 6 bert-base_1n1g_fp32_b32 0,1,2 'A B'\n" in result.stdout
