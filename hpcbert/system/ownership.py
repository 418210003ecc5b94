"""Users, their groups, and the owners of files."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path

_ROOT = 0


def user_name(uid: int) -> str:
    """Return the login name of a user, or their number if it is unknown."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def is_in_any_group(groups: Collection[str]) -> bool:
    """Return whether this process is in one of the groups; root is in all.

    Each group is looked up by its number: name services often list none (sssd.conf(5), enumerate).
    """
    return os.geteuid() == _ROOT or any(map(_is_in_group, groups))


def _is_in_group(group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in {*os.getgroups(), os.getegid()}
    except KeyError:
        return False


def find_foreign_owner(path: Path) -> str:
    """Return the owner of a file or directory; empty if it is the user's own.

    If it is a link, its owner matters too: that user chose the target.
    """
    uids = (path.lstat().st_uid, path.stat().st_uid)
    return next((user_name(uid) for uid in uids if uid != os.geteuid()), "")


def explain_distrust(status: os.stat_result) -> str:
    """Return a reason to look at a file before running it; empty if it can be trusted.

    Files of the user and of root are theirs to run, unless everybody can write to them. A group is
    trusted with what it may write to, and so is a user whom an ACL names (acl(5)). In a directory
    with the sticky bit, others can't change files that are not theirs.
    """
    if status.st_uid not in {os.geteuid(), _ROOT}:
        return f"It belongs to {user_name(status.st_uid)}"
    return "It can be changed by everybody" if is_world_writable(status) else ""


def is_world_writable(status: os.stat_result) -> bool:
    """Return whether everybody can change a file, or replace files in a directory."""
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    # All bits of a link are set, and have no meaning.
    return bool(status.st_mode & stat.S_IWOTH) and not sticky and not stat.S_ISLNK(status.st_mode)
