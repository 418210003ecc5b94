"""The owner of a file and its other writers, who decide whether it may be run.

The owner of a file, and anybody who can write to it or to its directory, can change it. The check
covers POSIX ACLs: the permission bits of the group show their mask (acl(5)).
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import TYPE_CHECKING

from hpcbert.errors import UsageError
from hpcbert.system import files

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

_ROOT = 0


def name(uid: int) -> str:
    """Return the login name of a user, or their number if it is unknown."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def member(groups: Collection[str]) -> bool:
    """Return whether this process is in one of some groups; root counts as being in all.

    Each group is looked up by its number: name services often list none (sssd.conf(5), enumerate).
    """
    return os.geteuid() == _ROOT or any(map(_is_in, groups))


def _is_in(group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in {*os.getgroups(), os.getegid()}
    except KeyError:
        return False


def stranger(path: Path) -> str:
    """Return the owner of a file or directory; empty if it is the user's own.

    If it is a link, its owner matters too: that user chose the target.

    Raises:
        OSError: It can't be examined.
    """
    owners = (path.lstat().st_uid, path.stat().st_uid)
    return next((name(one) for one in owners if one != os.geteuid()), "")


def writers(status: os.stat_result, *, private: bool = False) -> str:
    """Return who can write to a file or directory besides its owner; empty if nobody can.

    In a directory with the sticky bit, others can't change files that are not theirs.

    Args:
        status: Of the file or directory.
        private: Whether to treat the caller's private group as the caller: where umask is 002, as
            on Fedora and Debian, each user has a private group.
    """
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if sticky or stat.S_ISLNK(status.st_mode):  # All bits of a link are set, and have no meaning.
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and not (private and _is_private(status.st_gid)):
        return _group(status.st_gid)
    return ""


def _group(gid: int) -> str:
    try:
        return f"the group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"the group {gid}"


def _is_private(gid: int) -> bool:
    """Return whether a group belongs to the user alone: it has their name and only this member.

    Debian's OpenSSH uses the same rule (openssh, debian/patches/user-group-modes.patch). root's
    group is never private: on some systems it has members.
    """
    if os.geteuid() == _ROOT:
        return False
    try:
        person, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    own = person.pw_gid == gid and group.gr_name == person.pw_name
    return own and set(group.gr_mem) <= {person.pw_name}


def fault(status: os.stat_result, owners: Collection[int], *, private: bool = False) -> str:
    """Return why others can change a file or directory; empty if only the owners can."""
    if status.st_uid not in owners:
        return f"It belongs to {name(status.st_uid)}"
    who = writers(status, private=private)
    return f"It can be changed by {who}" if who else ""


def read_own(path: Path, *, most: int = files.MOST) -> bytes:
    """Return the content of a file that only the user can have written.

    The check uses the open file, so that the checked file is the one that is read.

    Args:
        path: The file, not a link.
        most: Bytes above which it is not what it is taken for.

    Raises:
        UsageError: It belongs to somebody else, or others can write to it or to its directory.
        OSError: It is missing, unreadable, larger, or not a regular file.
    """
    refuse(path.parent.stat(follow_symlinks=False), path.parent)
    descriptor, _ = files.open_file(path, follow=False)
    with os.fdopen(descriptor, "rb") as file:
        refuse(os.fstat(descriptor), path)
        return files.read_open(file, path, most=most)


def refuse(status: os.stat_result, path: Path) -> None:
    """Refuse to run a file that others can change.

    Raises:
        UsageError: The file or directory belongs to somebody else, or others can write to it.
    """
    why = fault(status, {os.geteuid()})
    if not why:
        return
    own = status.st_uid == os.geteuid()
    raise UsageError(
        f"{why}: hpcbert refuses to run or submit it.",
        where=str(path),
        hint=f"Check its contents, then: chmod go-w {path}"
        if own
        else f"Ask {name(status.st_uid)} to do it, or submit the points in a campaign of your own.",
    )
