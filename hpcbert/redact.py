"""Secrets taken out of what is recorded or printed; pure.

What gives a secret away is a name (`WANDB_API_KEY`) or a form (`hf_…`, `https://user:word@host`).
`NAMES` is written so that the describing script on the nodes applies the same expression with
bash: there a value is left out before anything is written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MASK = "<redacted>"

# A POSIX extended expression over `_NAME_`: upper case, all but letters and digits as `_`.
NAMES = (
    "(SECRET|PASSW|PASSPHRASE|PASSCODE|CREDENTIAL|CREDS?_|TOKEN_|KEYS?_|_PASS_|[A-Z0-9]_PWD_"
    "|AUTH_|AUTHORIZATION|COOKIE|_JWT_|BEARER|_PAT_|_SIG_|SIGNATURE|_DSN_|WEBHOOK)"
)
_NAMES = re.compile(NAMES)

# Forms of their own: AWS, Hugging Face, NGC, GitHub, GitLab, Slack, `sk-…`, Google, JWT.
_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(?:A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}"
    r"|hf_[A-Za-z0-9]{16,}|nvapi-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|sk-[\w-]{16,}|AIza[\w-]{30,}|ya29\.[\w-]{10,}"
    r"|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)",
    re.ASCII,
)
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)", re.DOTALL
)
# `user:word@`, or a user so long that it is a token.
_IN_URL = re.compile(r"(?<=://)(?:[^\s/@:]*:[^\s/@]*|[^\s/@:]{20,})@")
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization['\"]?\s*[:=]\s*['\"]?(?:[A-Za-z]+\s+)?)[^\s'\",;]+", re.IGNORECASE
)
_SCHEME = re.compile(r"\b(bearer|basic)(\s+)[\w.~+/=-]{12,}", re.IGNORECASE)
# NAME=value, NAME="a b", "name": "value", Name: value.
_SIGN = re.compile(
    r"(?<![\w.-])([\w.-]+)(?:['\"]?\s{0,8}=\s{0,8}|\s{0,8}:\s{1,8}|['\"]\s{0,8}:\s{0,8})"
)
_VALUE = re.compile(r"\"[^\"]*\"?|'[^']*'?|[^\s,;&]+")


def secret_name(name: str) -> bool:
    """Say whether a variable, option or field of this name may hold a secret."""
    plain = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return _NAMES.search(f"_{plain}_") is not None


def text(value: str) -> str:
    """Return a text with `MASK` where it holds a secret; what is around it stays."""
    masked = _PEM.sub(MASK, value)
    masked = _IN_URL.sub(f"{MASK}@", masked)
    masked = _HEADER.sub(rf"\g<1>{MASK}", masked)
    masked = _without_assigned(masked)
    masked = _SCHEME.sub(rf"\g<1>\g<2>{MASK}", masked)
    return _FORMS.sub(MASK, masked)


def _without_assigned(text: str) -> str:
    """Mask what is assigned to a secret name."""
    pieces: list[str] = []
    done = 0
    for match in _SIGN.finditer(text):
        if match.start() < done or not secret_name(match[1]) or _HEADER.match(match[0] + "x"):
            continue
        value = _VALUE.match(text, match.end())
        if value is not None:
            pieces += [text[done : match.end()], MASK]
            done = value.end()
    return "".join([*pieces, text[done:]])


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the values of secret names, and secrets in values, masked."""
    return {
        name: MASK if secret_name(name) and value else text(value)
        for name, value in variables.items()
    }


def command(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with as many words, secrets in them masked.

    `--token X` is recognised as well as `--token=X`.
    """
    masked: list[str] = []
    secret = False
    for word in words:
        masked.append(MASK if secret and not word.startswith("-") else text(word))
        secret = word.startswith("--") and "=" not in word and secret_name(word)
    return tuple(masked)
