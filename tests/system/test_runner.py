"""Commands: their input and output, their time, and those that are begun before they are needed."""

import os
import signal
import time
from functools import partial

import pytest

from hpcbert.system.runner import MAX_OUTPUT, MemoRunner, follow, run
from tests.kit.scripts import tool
from tests.kit.waiting import CEILING


def test_a_command_gets_its_input_and_is_read_to_its_end():
    text = "x" * 300_000 + "\n"
    outcome = run(["sh", "-c", "cat; echo a >&2; exit 3"], stdin=text)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (3, text, "a\n")
    assert run(["printf", "\\377\\n"]).stdout == "\N{REPLACEMENT CHARACTER}\n"
    assert run(["cat"]).ok
    assert run(["/no/such/program"]).returncode == 127
    assert run(["/etc/passwd"]).returncode == 126
    # Colours of a wrapper are not output.
    notice = r"\033[1;31mNotice\n\033]0;title\007\033[0m"
    for start in (run, partial(follow, show=print)):
        outcome = start(["sh", "-c", f"printf '{notice}12'; printf '{notice}late' >&2"])
        assert (outcome.stdout, outcome.stderr) == ("Notice\n12", "Notice\nlate"), start


def test_what_a_command_complains_of_is_shown_while_it_runs(tmp_path):
    """The command ends only when its line was shown."""
    shown = []

    def show(line):
        shown.append(line)
        (tmp_path / "shown").touch()

    script = "echo waits >&2; until [ -e shown ]; do :; done; printf 'half a'; printf ' line' >&2"
    outcome = run(["bash", "-c", script], cwd=tmp_path, show=show)
    assert (shown, outcome.returncode, outcome.stderr) == (["waits", " line"], 0, "waits\n line")
    lines = list[str]()
    outcome = follow(["sh", "-c", r"printf '1\r2\r3' >&2"], show=lines.append)
    assert (outcome.returncode, lines) == (0, ["1", "2", "3"])


def test_an_interrupted_command_can_print_while_it_cleans_up(tmp_path):
    def show(line):
        raise KeyboardInterrupt

    trap = 'trap "echo one >&2; echo two >&2; touch cleaned; exit" TERM'
    script = f"cd '{tmp_path}'; {trap}; echo begun >&2; while :; do sleep 0.05; done"
    with pytest.raises(KeyboardInterrupt):
        follow(["bash", "-c", script], show=show)
    assert (tmp_path / "cleaned").exists()


def test_a_command_that_gives_no_answer_or_no_end_of_it_is_ended(tmp_path, monkeypatch):
    outcome = run(["yes"], timeout=CEILING)
    assert outcome.returncode == 124
    assert "printed more than 64 MiB" in outcome.stderr
    assert len(outcome.stdout) < MAX_OUTPUT + (1 << 20)
    # The time of a command is over as soon as something of it was read, however slow it is.
    read, now, received = os.read, time.monotonic, []

    def note(handle, size):
        data = read(handle, size)
        received.extend([data] if data else [])
        return data

    monkeypatch.setattr(os, "read", note)
    monkeypatch.setattr(time, "monotonic", lambda: now() + 2 * CEILING * bool(received))
    outcome = run(["sh", "-c", "echo begun; sleep 3600"], timeout=CEILING)
    assert (outcome.returncode, outcome.stdout) == (124, "begun\n")
    assert f"gave no answer within {CEILING:g} s" in outcome.stderr
    # Who keeps a pipe open keeps nobody waiting.
    received.clear()
    pid = f"'{tmp_path}/pid'"
    # It speaks once the other has left its group, which is ended at that.
    apart = f'setsid sh -c "echo \\$\\$ >{pid}; exec sleep 3600" & '
    line = f"{apart}until [ -s {pid} ]; do sleep 0.01; done; echo done"
    outcome = run(["sh", "-c", line], timeout=CEILING)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (outcome.returncode, outcome.stdout) == (124, "done\n")


@pytest.mark.slow
def test_a_command_that_says_nothing_or_closes_its_pipes_is_waited_for():
    assert run(["sleep", "3600"], timeout=0.1).returncode == 124
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 5"]).returncode == 5
    assert run(["sh", "-c", "exec >&- 2>&-; sleep 3600"], timeout=0.5).returncode == 124


def test_a_question_is_asked_once_with_its_environment_and_input():
    argv, mine = ["sh", "-c", "echo ${WHO-nobody} $$; cat"], {**os.environ, "WHO": "me"}
    asks = MemoRunner(run)
    outcomes = [asks(argv, env=env) for env in (mine, None, mine, None)]
    assert outcomes[:2] == outcomes[2:]
    assert [outcome.stdout.split()[0] for outcome in outcomes[:2]] == ["me", "nobody"]
    assert asks(argv, env=mine, stdin="said\n").stdout.endswith("said\n")
    assert asks(["/no/such/program"]).returncode == 127


def test_a_missing_configuration_of_slurm_is_refused_at_once(tmp_path):
    sinfo = tool(tmp_path, "sinfo", "#!/bin/sh\necho up\n")
    for conf, is_missing in ((tmp_path / "gone.conf", True), (sinfo, False)):
        env = {"PATH": str(tmp_path), "SLURM_CONF": str(conf)}
        outcome = run(["sinfo"], env=env)
        assert (f"SLURM_CONF names {conf}," in outcome.stderr) == is_missing
        assert outcome.ok == (not is_missing)
        assert run(["/bin/true"], env=env).ok
