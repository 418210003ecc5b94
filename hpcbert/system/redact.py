"""Mask secrets in what is recorded or printed; pure.

A secret is recognised by a name (`WANDB_API_KEY`) or a form (`hf_…`, `https://user:word@host`).
`NAMES` and `FORMS` are written so that the describing script on the nodes applies the same
expressions with bash: there a value is left out before anything is written. The forms are those
that their issuers document; tests compare them with the rules of Yelp/detect-secrets 1.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli

MASK = "<redacted>"

# A POSIX extended expression over `_NAME_`: upper case, all but letters and digits as `_`.
NAMES = (
    "(SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|CREDS?_|TOKEN_|KEYS?_|[^YM]PASS_|[A-Z0-9]_PWD_"
    "|DBPWD_|_PW_|_PSK_|_SAS_|_[HT]?OTP_|_MFA_|_NGCCLI_$|CONNECTION_?STRING|AUTH_|AUTHORIZATION|COOKIE|_JWT_|BEARER|_PAT_|_SIG_|SIGNATURE|_DSN_|WEBHOOK)"
)
_NAMES = re.compile(NAMES)
# Names in logs that count or describe tokens and keys of a model; what they name is not long.
_MEASURES = re.compile(
    "_(REAL|PAD|MASK|UNK|CLS|SEP|BOS|EOS|SPECIAL|VALID|NUM|N|PER|MISSING|UNEXPECTED|SORT)_"
    "(TOKEN|KEYS?)_|_TOKEN_(SHARE|IDS?|TYPES?|COUNT|LEN|LENGTH|RATE|PER|EMBEDDINGS?|SIZE|LIMIT|"
    "BUDGET|ACCURACY|LOSS|RATIO|FRACTION|INDEX|MASK|MEAN|THROUGHPUT|CLASSIFIER|CLASSIFICATION)_"
    "|_KEY_(PADDING|VALUE|DIM|SIZE|LEN|LENGTH|BIAS|WEIGHT|LAYER|MASK|PROJ)_"
)
_SHORT = 16
_DECIMAL = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?", re.IGNORECASE)

_TABLE = tomli.loads(Path(__file__).with_name("secret_forms.toml").read_text(encoding="utf-8"))
FORMS = "|".join(_TABLE["forms"])
# A JWT's first part needs a limit here, so that the time stays linear. bash would take 20 ms to
# compile it for each job, and the values that it searches are short.
_BOUNDED_FORMS = FORMS.replace("{8,}", "{8,1000}")
_FORMS = re.compile(f"(?<![A-Za-z0-9])(?:{_BOUNDED_FORMS})", re.ASCII)
_PEM = re.compile(
    r"(?P<dashes>-{4,5}) ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?(?P=dashes)"
    r".*?(?:(?P=dashes) ?END [A-Z0-9 ]{0,40}(?P=dashes)|\Z)"
    r"|PuTTY-User-Key-File-\d.*?(?:Private-MAC: \w*|\Z)",
    re.DOTALL,
)
# `user:word@`, or a user so long that it is a token.
_IN_URL = re.compile(r"(?<=://)(?:[^\s/@:]*:[^\s/@]*|[^\s/@:]{20,})@")
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization['\"]?\s*[:=,]\s*['\"]?(?:[A-Za-z]+\s+)?)[^\s'\",;]+",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)[\w.~+/=-]{12,}", re.IGNORECASE)
# NAME=value, NAME="a b", "name": "value", Name: value.
_SIGN = re.compile(
    r"(?<![\w.-])([\w.-]+)(?:['\"]?\s{0,8}=\s{0,8}|\s{0,8}:\s{1,8}|['\"]\s{0,8}:\s{0,8})"
)
# `--name value` on a command line, and the user and password for curl.
_OPTION = re.compile(
    r"(?<!\S)(?P<head>--(?P<name>[\w-]{1,64})\s{1,8})(?![-\s])(?:'[^']*'?|\"[^\"]*\"?|\S+)(?P<tail>)"
)
_LOGIN = re.compile(
    r"(?<!\S)((?:-u|--user|--proxy-user)(?:\s{1,8}|=)?['\"]?)(?!\+)([^\s:'\"]{1,256}):([^\s'\"]+)"
)
# The same as elements of a list: ['--name', 'value'].
_ELEMENT = re.compile(
    r"(?P<head>(['\"])--(?P<name>[\w-]{1,64})\2,\s{0,8}(?P<tail>['\"]))(?!-)[^'\"\n]+(?P=tail)"
)
# netrc and enroot's credentials, on one line or several (netrc(5)).
_NETRC = re.compile(
    r"(?<!\S)((?:machine\s{1,8}\S{1,256}|default(?=\s{1,8}login\s))(?:\s{1,8}(?:login|account|port)\s{1,8}\S{1,256})"
    r"{0,3}\s{1,8}(?:password|passwd)\s{1,8})\S+"
)
# docker login -p word, sshpass -p word, wandb login KEY, and setenv NAME value.
_PROGRAM = re.compile(
    r"(?<!\S)((?:(?:docker|podman|singularity|apptainer|oras|helm)\s+(?:remote\s+|registry\s+)?login\b"
    r"[^\n|;]{0,200}?\s-p\s{0,8}|sshpass\s+-p\s{0,8}|wandb\s+login\s+(?:--relogin\s+)?(?=[0-9a-f]{40}))"
    r"['\"]?)[^\s'\"]+"
)
_SETENV = re.compile(
    r"(?<!\S)(?P<head>(?:setenv|ENV)\s{1,8}(?P<name>\w{1,256})\s{1,8})(?!=)\S+(?P<tail>)"
)
_LOGINS = ("-u", "--user", "--proxy-user")
# In MLPerf's records, and in the calls that write them, `key` is the key of a name.
_RECORD = re.compile(":::MLLOG|mlperf_logger|mllog")
_VALUE = re.compile(r"\"[^\"]*\"?|'[^']*'?|[^\s,;&]+")


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or field may hold a secret, by its name."""
    normalized = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return _NAMES.search(f"_{normalized}_") is not None


def is_measure(name: str, value: str) -> bool:
    """Return whether a name counts or describes tokens or keys, and the value is short."""
    normalized = re.sub(r"[^A-Z0-9]", "_", name.upper())
    is_short = len(value) < _SHORT or _DECIMAL.fullmatch(value)
    return bool(is_short and _MEASURES.search(f"_{normalized}_"))


def mask_text(value: str, *, is_program: bool = False) -> str:
    """Return a text with its secrets replaced by `MASK`; the rest stays.

    Args:
        is_program: Whether it is a program's text: there a name in lower case is a variable, not a
            written secret.
    """
    masked = _PEM.sub(MASK, value)
    masked = _FORMS.sub(MASK, masked)
    masked = _IN_URL.sub(f"{MASK}@", masked)
    masked = _LOGIN.sub(_mask_password, masked)
    masked = _NETRC.sub(rf"\g<1>{MASK}", masked)
    masked = _PROGRAM.sub(rf"\g<1>{MASK}", masked)
    for pattern in (_SETENV, _ELEMENT, _OPTION):
        masked = pattern.sub(_mask_named, masked)
    masked = _HEADER.sub(rf"\g<1>{MASK}", masked)
    masked = _mask_assigned(masked, is_program=is_program)
    return _SCHEME.sub(rf"\g<1>\g<2>{MASK}", masked)


def _mask_password(match: re.Match[str]) -> str:
    """Mask the password of `-u user:password`; `-u 1000:1000` is a user and a group."""
    if match[2].isdigit() and match[3].isdigit():
        return match[0]
    return f"{match[1]}{match[2]}:{MASK}"


def _mask_named(match: re.Match[str]) -> str:
    """Mask the value between head and tail of `setenv NAME value`, if the name is a secret's."""
    return f"{match['head']}{MASK}{match['tail']}" if is_secret_name(match["name"]) else match[0]


def _mask_assigned(text: str, *, is_program: bool) -> str:
    pieces: list[str] = []
    position = 0
    for match in _SIGN.finditer(text):
        if (
            match.start() < position
            or not is_secret_name(match[1])
            or _HEADER.match(match[0] + "x")
        ):
            continue
        line_start = text.rfind("\n", 0, match.start()) + 1
        if match[1] == "key" and _RECORD.search(text, line_start, match.start()):
            continue
        if is_program and not match[1].isupper():
            continue
        value = _VALUE.match(text, match.end())
        if value is not None and not is_measure(match[1], value[0]):
            pieces += [text[position : match.end()], MASK]
            position = value.end()
    return "".join([*pieces, text[position:]])


def mask_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the values of secret names, and secrets in values, masked."""
    return {
        name: MASK if is_secret_name(name) and value else mask_text(value)
        for name, value in variables.items()
    }


def mask_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with the same number of words, and secrets masked.

    `--token X` is recognised as well as `--token=X`, and `-u user:password`.
    """
    masked: list[str] = []
    is_secret_next, previous_word = False, ""
    for word in words:
        if previous_word in _LOGINS and (login := _LOGIN.fullmatch(f"{previous_word} {word}")):
            masked.append(_mask_password(login).partition(" ")[2])
        else:
            masked.append(MASK if is_secret_next and not word.startswith("-") else mask_text(word))
        is_secret_next = word.startswith("--") and "=" not in word and is_secret_name(word)
        previous_word = word
    return tuple(masked)
