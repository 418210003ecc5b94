"""What enroot and pyxis print, and what hpcbert makes of it."""

from __future__ import annotations

import pytest

from hpcbert.container.runtimes import SYMPTOMS, find_symptom
from tests.kit.cases import read_constant

PRINTED = read_constant(__file__, "PRINTED")


def test_every_row_has_its_words() -> None:
    assert [symptom.name for symptom in SYMPTOMS] == list(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_row_is_known_by_what_is_printed(name: str) -> None:
    symptom = find_symptom(PRINTED[name])
    assert symptom is not None
    assert symptom.name == name
    assert symptom.problem.endswith(".")
    assert symptom.hint


MANIFEST = "https://r.io:5000/v2/a/b/manifests/sha256:0"
_401 = "returned error code: 401 Unauthorized"
USING = "[INFO] Using credentials from file: /home/bob/.config/enroot/.credentials\n"


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("tar: Cannot open: Permission denied", "foreign-cache"),
        ("tar: 0/usr/bin/x: Cannot open: Permission denied", "foreign-cache"),
        (f"tar (child): /c/{'a' * 64}: No se puede efectuar open: Permiso denegado", "foreign-cache"),
        (f"tar (child): /c/{'a' * 64}: Cannot open: No such file or directory", None),
        ("enroot-mount: failed to mount: /a at /d/x/a: No such file or directory", None),
        ("FATAL: mount /nfs/a->/nfs/a error: while mounting /nfs/a: permission denied", "root-squash"),
        ("enroot-switchroot: failed to execute: /bin/bash: Permission denied", "noexec"),
        ("enroot-switchroot: failed to execute: /bin/bash: No such file or directory", None),
        ("FATAL: exec /.singularity.d/actions/exec failed: permission denied", "noexec"),
        (f"{USING}[ERROR] URL https://quay.io/v2/auth returned error code: 401", "unauthorized"),
        (f"{USING}[ERROR] URL https://r.io/token returned error code: 401", "unauthorized"),
        (
            f"{USING}[INFO] Authentication succeeded\n[ERROR] URL {MANIFEST} {_401}",
            "unauthorized",
        ),
        (
            f"pyxis:     {USING}pyxis:     [INFO] Fetching\npyxis:     [ERROR] URL {MANIFEST} {_401}",
            "basic-over-http2",
        ),
        ("curl: (60) SSL certificate problem: self-signed certificate in chain", "unknown-authority"),
        ("curl: (60) SSL certificate problem: self signed certificate", "unknown-authority"),
        ("curl: (60) server certificate verification failed. CAfile: none", "unknown-authority"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "unknown-authority"),
        ("curl: (77) error setting certificate verify locations", "unknown-authority"),
        ("curl: (77) error setting certificate file: /ca.pem", "unknown-authority"),
        ("curl: (77) error adding trust anchors from file: /ca.pem", "unknown-authority"),
        ("curl: (77) error reading ca cert file /ca.pem (Error while reading file.)", "unknown-authority"),
        ("remote error: tls: unknown certificate authority", "unknown-authority"),
        ("curl: (60) SSL: no alternative certificate subject name matches target host name", None),
        ("curl: (60) SSL certificate problem: certificate has expired", None),
        ("unauthorized: authentication required", "unauthorized"),
        ("denied: requested access to the resource is denied", "unauthorized"),
        ("dial tcp: lookup r.io: no such host", "no-host"),
        ("dial tcp 10.0.0.1:443: i/o timeout", "no-host"),
        ("curl: (28) Operation timed out after 30000 milliseconds", "no-host"),
        ("write /tmp/x: no space left on device", "no-space"),
        ("fuse: device not found, try 'modprobe fuse' first", "fuse"),
    ],
    ids=lambda value: str(value)[-60:],
)  # fmt: skip
def test_other_spellings_and_near_misses(printed: str, name: str | None) -> None:
    symptom = find_symptom(printed)
    assert (symptom.name if symptom else None) == name


def test_the_remedies_name_what_to_type() -> None:
    hints = {symptom.name: symptom.hint for symptom in SYMPTOMS}
    assert "http1.1" in hints["basic-over-http2"]
    assert "~/.curlrc" in hints["basic-over-http2"]
    assert "cacert" in hints["unknown-authority"]


def test_what_nobody_knows_is_no_symptom() -> None:
    assert find_symptom("[INFO] Fetching image manifest\nSegmentation fault") is None


def test_a_login_that_went_well_is_not_blamed() -> None:
    message = "[INFO] Authenticating with user: bob\n[INFO] Authentication succeeded\nKilled"
    assert find_symptom(message) is None
