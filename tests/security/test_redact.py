"""Secrets are recognised by name and by form, and nothing else is touched."""

from __future__ import annotations

import shutil
import string
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbert import redact
from hpcbert.redact import MASK, command, environment, secret_name, text

WORD = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40)
SECRET_NAMES = (
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "NGC_API_KEY",
    "WANDB_API_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GITHUB_TOKEN",
    "GH_PAT",
    "MYSQL_PWD",
    "PGPASSWORD",
    "DOCKER_PASS",
    "password",
    "X-Auth-Token",
    "client_secret",
    "accessKey",
    "SSH_PRIVATE_KEY",
    "AZURE_CLIENT_CREDENTIALS",
    "SENTRY_DSN",
)
PLAIN_NAMES = (
    "PWD",
    "OLDPWD",
    "HOME",
    "PATH",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "TOKENIZERS_PARALLELISM",
    "MAX_TOKENS",
    "SLURM_JOB_ID",
    "PATTERN",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "PASSIVE_WAIT",
)
FORMS = (
    "AKIAIOSFODNN7EXAMPLE",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "nvapi-abcdefghijklmnopqrstuvwxyz0123",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopq",
    "glpat-abcdefghijklmnopqrst",
    "xoxb-123456789012-abcdefghij",
    "sk-proj-abcdefghijklmnopqrstuvwx",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz01234",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----",
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_names_that_give_a_secret_away(name: str) -> None:
    assert secret_name(name)
    assert environment({name: "x"}) == {name: MASK}
    assert text(f"run --export={name}=abc,FOO=1") == f"run --export={name}={MASK},FOO=1"
    assert command(["curl", f"--{name}", "abc", f"--{name}=abc", "-v"]) == (
        *("curl", f"--{name}", MASK, f"--{name}={MASK}", "-v"),
    )


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_names_that_do_not(name: str) -> None:
    assert not secret_name(name)
    assert environment({name: "a b:/c"}) == {name: "a b:/c"}


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_are_secrets_wherever_they_stand(form: str) -> None:
    for around in ("{}", "see {} there", "[{}]", "a={}", "https://host/x?q={}", '{{"v": "{}"}}'):
        assert form not in text(around.format(form))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("https://me:word@host/x", f"https://{MASK}@host/x"),
        ("docker://$oauthtoken:abc@nvcr.io#a/b:1", f"docker://{MASK}@nvcr.io#a/b:1"),
        ("docker://user@nvcr.io#a/b:1", "docker://user@nvcr.io#a/b:1"),
        ("git+https://0123456789abcdef0123@host/r", f"git+https://{MASK}@host/r"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {MASK}"),
        ("-H 'Authorization: Basic dXNlcjpwdw=='", f"-H 'Authorization: Basic {MASK}'"),
        ("https://h/x?X-Amz-Signature=ab12&y=1", f"https://h/x?X-Amz-Signature={MASK}&y=1"),
        ('{"password": "a b", "x": 1}', f'{{"password": {MASK}, "x": 1}}'),
        ("--set key_file=/a", "--set key_file=" + MASK),
    ],
)
def test_what_is_around_a_secret_stays(before: str, after: str) -> None:
    assert text(before) == after


@pytest.mark.parametrize(
    "plain",
    [
        "hpcbert submit --nodes 4 --gpus-per-node 8 --fw oneflow --set learning_rate=1e-4",
        "/data/key:/data/key:ro,/x:/y",
        "docker://nvcr.io#nvidia/pytorch:25.04-py3",
        "http://[::1]:8080/a@b",
        "NCCL_IB_HCA=mlx5_0:1",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "iteration: 1/120 loss: 9.5 samples/s: 10.00",
        "",
    ],
)
def test_what_is_no_secret_stays(plain: str) -> None:
    assert text(plain) == plain
    assert command(plain.split()) == tuple(plain.split())


@given(WORD, st.sampled_from(SECRET_NAMES), st.sampled_from(PLAIN_NAMES))
def test_a_secret_never_comes_through(word: str, name: str, other: str) -> None:
    variables = {name: word, other: "x", "URL": f"https://u:{word}@h/", "H": f"{name}={word}"}
    shown = environment(variables)
    assert list(shown) == list(variables)
    assert word not in str(shown)
    line = ["x", f"--env={name}={word}", f"--{name}", word, f"{other}=y", f"https://:{word}@h"]
    assert word not in str(command(line))


@given(st.text(max_size=200))
def test_masking_twice_is_masking_once(value: str) -> None:
    once = text(value)
    assert text(once) == once


@given(st.lists(st.text(max_size=20), max_size=8))
def test_a_command_keeps_its_number_of_words(words: list[str]) -> None:
    assert len(command(words)) == len(words)


@pytest.mark.parametrize(
    "piece",
    [
        "a=",
        "token=",
        "://",
        "a:",
        "authorization ",
        "-----BEGIN PRIVATE KEY-----",
        "eyJaaaaaaaa.",
        " ",
    ],
)
def test_long_texts_take_no_long_time(piece: str) -> None:
    began = time.process_time()
    text(piece * (200_000 // len(piece)))
    assert time.process_time() - began < 5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,12}", fullmatch=True), min_size=1))
def test_bash_knows_the_same_names(names: list[str]) -> None:
    """The expression means the same to bash, which leaves secrets out on the nodes."""
    bash = shutil.which("bash")
    assert bash
    script = "for name; do [[ _${name^^}_ =~ $NAMES ]] && echo 1 || echo 0; done"
    done = subprocess.run(
        [bash, "-c", script, "names", *names],
        env={"NAMES": redact.NAMES, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(int(secret_name(name))) for name in names]
