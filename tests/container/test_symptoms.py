"""What enroot and pyxis print, and what hpcbert makes of it."""

from __future__ import annotations

import re

import pytest

from hpcbert.container.symptoms import SYMPTOMS, explain

PRINTED = {
    "capabilities": "enroot-aufs2ovlfs: failed to set capabilities: Operation not permitted",
    "user-namespaces": "enroot-nsenter: failed to create user namespace: No space left on device",
    "runtime-path": "mkdir: cannot create directory '/run/enroot': Permission denied",
    "whiteouts": "enroot-mksquashovlfs: failed to mount overlay: Invalid argument",
    "no-space": "FATAL ERROR: failed to write to output filesystem: No space left on device",
    "too-many-requests": "[ERROR] URL https://r.io/v2/a/manifests/1 returned error code: 429 ",
    "unauthorized": "[INFO] Authenticating with user: bob\n"
    "[ERROR] URL https://r.io/token returned error code: 401 Unauthorized",
    "not-found": "[ERROR] URL https://r.io/v2/a/manifests/1 returned error code: 404 Not Found",
    "rootfs-lock": "[ERROR] Could not acquire rootfs lock",
    "exists": "[ERROR] File already exists: /images/x.sqsh",
    "nvidia-hook": "[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1",
    "fuse": "squashfuse: failed to open /dev/fuse: Permission denied",
    "memory": "FATAL ERROR: Out of memory (create_thread_pool)",
    "plugin-version": "error: plugin_load_from_file: Incompatible Slurm plugin version",
    "no-program": "hpcbert: there is no enroot on login1",
    "no-host": "curl: (6) Could not resolve host: r.io",
    "wrong-password": "[INFO] Querying registry for permission grant\n"
    "[INFO] Authenticating with user: bob\n"
    "[INFO] Using credentials from file: /home/bob/.config/enroot/.credentials",
}


def test_every_row_has_its_words() -> None:
    assert [one.name for one in SYMPTOMS] == list(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_a_row_is_known_by_what_is_printed(name: str) -> None:
    found = explain(PRINTED[name])
    assert found is not None
    assert found.name == name
    assert found.what.endswith(".")
    assert found.hint


def test_what_nobody_knows_is_no_symptom() -> None:
    assert explain("[INFO] Fetching image manifest\nSegmentation fault") is None


def test_a_login_that_went_well_is_not_blamed() -> None:
    said = "[INFO] Authenticating with user: bob\n[INFO] Authentication succeeded\nKilled"
    assert explain(said) is None


def test_the_issues_are_named_as_their_projects_number_them() -> None:
    assert all(
        re.fullmatch(r"(enroot|pyxis) #\d+", issue) for one in SYMPTOMS for issue in one.seen
    )
