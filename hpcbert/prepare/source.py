"""Prepare a program: the pinned commit, checked out once, with the recipe's patches."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import HpcbertError, IncompleteError
from hpcbert.prepare.archive import is_archive, unpack
from hpcbert.prepare.parts import Context, Part, Status, make_directory, without_user, write_record
from hpcbert.script.prepared import (
    comes_with_environment,
    read_record,
    record_directory,
    runs_in_environment,
    source_record_path,
)
from hpcbert.system import redact
from hpcbert.system.processes import read_start_time

# Enough for a large repository over a slow link.
_GIT_TIMEOUT = 3600.0
# The end of the name of a checkout that is not finished: `_fetch_commit` gives it.
_UNFINISHED_NAME = re.compile(r"~(?P<host>[^~]+)~(?P<pid>\d+)~[0-9a-f]{8}(~old)?")
_GIT_ENV = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def prepare_source(recipe: Recipe, site: Site, context: Context) -> Part:
    """Prepare a framework's program.

    Raises:
        HpcbertError: The file system refused.
    """
    own_checkout = site.settings(recipe.name).source
    if own_checkout:
        return _use_own_checkout(recipe, own_checkout)
    if reason := _skip_reason(recipe, site):
        return Part(recipe.name, "source", "skipped", reason)
    path = source_record_path(site, recipe)
    directory = record_directory(path)
    existing_record = read_record(path)
    name = f"{without_user(recipe.source.repository)}@{recipe.source.commit[:12]}"
    if existing_record and directory.is_dir():
        return _check_checkout(recipe, name, directory, existing_record["digest"], context)
    if context.dry:
        return Part(recipe.name, "source", "planned", f"would check out {name} in {directory}")
    try:
        commit, digest = _check_out(recipe, site, directory, context)
    except IncompleteError as error:
        return Part(recipe.name, "source", "failed", error.message, hint=error.hint)
    content = {"repository": without_user(recipe.source.repository), "commit": commit}
    write_record(path, {**content, "patches": list(recipe.source.patches), "digest": digest})
    return _describe_checkout(recipe, "done", name, directory, digest)


def _skip_reason(recipe: Recipe, site: Site) -> str:
    """Return why nothing is to be checked out; empty if something is."""
    if comes_with_environment(site, recipe):
        return "the program comes with its environment"
    virtual_environment = recipe.environment if runs_in_environment(site, recipe) else None
    is_needed = (
        "source" in recipe.needs
        or recipe.image.copy
        or (virtual_environment and virtual_environment.builds_source)
    )
    return "" if recipe.source.commit and is_needed else "the program is not taken from a checkout"


def _use_own_checkout(recipe: Recipe, path: str) -> Part:
    if Path(path).is_dir():
        return Part(recipe.name, "source", "ready", "the site's own checkout", path)
    hint = "If only the nodes have that path, all is well."
    return Part(
        recipe.name,
        "source",
        "skipped",
        "the site's checkout is not on this machine",
        path,
        "",
        hint,
    )


def _check_checkout(
    recipe: Recipe, name: str, directory: Path, digest: str, context: Context
) -> Part:
    """Check whether a checkout is still as checked out; files that were built in it may stay."""
    outcome = context.run(["git", "-C", str(directory), "diff", "--quiet"], env=context.env)
    if outcome.returncode != 1:
        return _describe_checkout(recipe, "ready", name, directory, digest)
    hint = f"Remove {directory} and its .json, and prepare again; or name it as your own: "
    hint += f"frameworks.{recipe.name}.source."
    detail = f"files of {name} were changed since it was checked out"
    return Part(recipe.name, "source", "failed", detail, str(directory), "", hint)


def _describe_checkout(
    recipe: Recipe, status: Status, name: str, directory: Path, digest: str
) -> Part:
    if recipe.source.incomplete:
        hint = f"Complete a copy, and name it: frameworks.{recipe.name}.source."
        detail = f"{name} exists, but can't run as it is: {recipe.source.incomplete}"
        return Part(recipe.name, "source", "failed", detail, str(directory), digest, hint)
    return Part(recipe.name, "source", status, name, str(directory), digest)


def _check_out(recipe: Recipe, site: Site, directory: Path, context: Context) -> tuple[str, str]:
    """Check out under a private name, then rename; return the commit and the digest of the tree."""
    make_directory(directory.parent)
    _remove_leftovers(directory)
    url = site.settings(recipe.name).repository or recipe.source.repository
    host = socket.gethostname()
    private_directory = directory.with_name(
        f".{directory.name}~{host}~{os.getpid()}~{secrets.token_hex(4)}"
    )
    try:
        context.say(f"fetching {recipe.source.commit[:12]} of {without_user(url)}")
        identifiers = _fetch_program(recipe, url, private_directory, context)
        # A faster process made the same; or a killed one left a directory without a record.
        with contextlib.suppress(FileNotFoundError):
            directory.rename(private_directory.with_name(f"{private_directory.name}~old"))
        private_directory.rename(directory)
    except OSError as error:
        raise HpcbertError(
            f"Can't write the record: {error.strerror}.", where=str(directory)
        ) from error
    finally:
        shutil.rmtree(private_directory, ignore_errors=True)
        shutil.rmtree(
            private_directory.with_name(f"{private_directory.name}~old"), ignore_errors=True
        )
    return identifiers


def _fetch_program(
    recipe: Recipe, url: str, private_directory: Path, context: Context
) -> tuple[str, str]:
    """Fetch a program into a new directory and patch it.

    Returns:
        The commit, or the digest of an archive without a commit; and the digest of the tree.
    """

    def git(*words: str, patience: float = 300.0) -> str:
        argv = ["git", "-C", str(private_directory), "-c", "core.autocrlf=false", *words]
        outcome = context.run(argv, env={**context.env, **_GIT_ENV}, timeout=patience)
        if not outcome.ok:
            message = redact.mask_text(" ".join(outcome.stderr.split()))
            raise IncompleteError(
                f"git {words[0]} failed: {without_user(message)}", hint=_git_hint(recipe, message)
            )
        return outcome.stdout.strip()

    private_directory.mkdir()
    if is_archive(url):
        commit = unpack(Path(url).expanduser().absolute(), private_directory, recipe.source.path)
        _refuse_another(recipe, url, commit)
        git("init", "--quiet")
        git("add", "--all", "--force", ".")
    else:
        commit = recipe.source.commit
        git("init", "--quiet")
        _fetch_commit(git, url, commit)
    for patch in recipe.source.patches:
        git("apply", "--index", "--whitespace=nowarn", str(Path(recipe.folder) / patch))
    return commit, "git-tree:" + git("write-tree")


def _refuse_another(recipe: Recipe, url: str, commit: str) -> None:
    if commit != recipe.source.commit and not commit.startswith("sha256:"):
        raise IncompleteError(
            f"{url} has commit {commit[:12]}, but the recipe needs {recipe.source.commit[:12]}",
            hint=f"Name an archive of that commit as frameworks.{recipe.name}.repository.",
        )


def _fetch_commit(git: Callable[..., str], url: str, commit: str) -> None:
    """Fetch and check out a commit."""
    try:
        git(
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            url,
            commit,
            patience=_GIT_TIMEOUT,
        )
    except IncompleteError:
        # Servers may refuse a commit that no branch or tag points to: then fetch everything.
        refs = ("+refs/heads/*:refs/remotes/all/*", "+refs/tags/*:refs/tags/*")
        git("fetch", "--quiet", url, *refs, patience=_GIT_TIMEOUT)
    git("checkout", "--quiet", "--detach", commit)


def _git_hint(recipe: Recipe, message: str) -> str:
    """Return what to do about git's message."""
    alternative = f"with --repository or frameworks.{recipe.name}.repository."
    if "dubious ownership" in message:
        return (
            f"Run the command that git names, if you trust its owner, or name another {alternative}"
        )
    return f"Prepare on a host that can reach the repository, or name another {alternative}"


def _remove_leftovers(directory: Path) -> None:
    """Remove the files that killed checkouts of this program on this host left."""
    for path in directory.parent.glob(f".{directory.name}~*"):
        match = _UNFINISHED_NAME.fullmatch(path.name.removeprefix(f".{directory.name}"))
        if match and match["host"] == socket.gethostname() and not read_start_time(match["pid"]):
            shutil.rmtree(path, ignore_errors=True)
