"""Prepare a program: the pinned commit, checked out or unpacked once, with the recipe's patches."""

from __future__ import annotations

import hashlib
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hpcbert.config.recipe import Recipe
from hpcbert.config.site import Site
from hpcbert.errors import IncompleteError
from hpcbert.prepare.parts import Context, Part, Status, make_alone, without_user, write_record
from hpcbert.script import materials
from hpcbert.system import redact
from hpcbert.system.files import translate_errors

_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")
_COMMIT_HASH = re.compile(r"[0-9a-f]{40}")
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError)


class _Member(NamedTuple):
    """A file or link of an archive.

    Attributes:
        link: The target of a link; empty for a file.
    """

    name: PurePosixPath
    content: bytes
    executable: bool = False
    link: str = ""


def is_archive(url: str) -> bool:
    """Return whether a URL is the path of an archive, and not of a repository."""
    return "://" not in url and url.lower().endswith(_ARCHIVE_SUFFIXES)


def unpack(archive: Path, target: Path, program: str = "") -> str:
    """Unpack an archive into an empty folder, without its single top folder.

    Args:
        program: The program's folder in the repository; an archive of only that part is whole too.

    Returns:
        The commit that it names, as git and its servers write it; otherwise its digest, `sha256:…`.

    Raises:
        IncompleteError: It is missing or damaged, lacks the program, or has a path that leads
            elsewhere.
        OSError: The folder can't be written to.
    """
    if not archive.is_file():
        raise IncompleteError(f"archive {archive} does not exist", hint="Name an existing one.")
    try:
        is_zip = archive.name.lower().endswith(".zip")
        comment, entries = _read_zip(archive) if is_zip else _read_tar(archive)
        # A repository's own folder could make git run programs that it names.
        members = [entry for entry in entries if ".git" not in entry.name.parts]
    except _DAMAGE as error:
        message = f"{archive.name} can't be unpacked: {str(error) or type(error).__name__}"
        hint = "The file is damaged, or not an archive: fetch it again."
        raise IncompleteError(message, hint=hint) from error
    # All are in one top folder that is not in the program's path.
    is_nested = (
        len({entry.name.parts[0] for entry in members if entry.name.parts}) == 1
        and all(len(entry.name.parts) > 1 for entry in members)
        and not (program and any(entry.name.is_relative_to(program) for entry in members))
    )
    # Links come last, so that nothing is written through one.
    for member in sorted(members, key=lambda entry: bool(entry.link)):
        relative_path = PurePosixPath(*member.name.parts[1:]) if is_nested else member.name
        _refuse_outside(archive, relative_path, member.link)
        path = target / relative_path
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.link:
            path.symlink_to(member.link)
        else:
            path.write_bytes(member.content)
            path.chmod(0o755 if member.executable else 0o644)
    if not (target / program).is_dir():
        hint = "Name an archive of the whole repository."
        raise IncompleteError(f"{archive.name} has no {program}", hint=hint)
    if _COMMIT_HASH.fullmatch(comment):
        return comment
    return f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"


def _read_tar(archive: Path) -> tuple[str, list[_Member]]:
    """Return all files, and the comment in which `git archive` names the commit."""
    members = []
    with tarfile.open(archive) as file:
        for tar_info in file:
            name = PurePosixPath(tar_info.name)
            if tar_info.issym():
                members.append(_Member(name, b"", link=tar_info.linkname))
            elif tar_info.isreg() or tar_info.islnk():
                content = file.extractfile(tar_info)
                data = content.read() if content else b""
                members.append(_Member(name, data, bool(tar_info.mode & 0o100)))
            elif not tar_info.isdir():
                raise ValueError(f"{tar_info.name} is neither a file nor a folder")
        return file.pax_headers.get("comment", ""), members


def _read_zip(archive: Path) -> tuple[str, list[_Member]]:
    """Return what `_read_tar` does."""
    members = []
    with zipfile.ZipFile(archive) as file:
        for zip_info in file.infolist():
            name, mode = PurePosixPath(zip_info.filename), zip_info.external_attr >> 16
            if zip_info.is_dir():
                continue
            content = file.read(zip_info)
            if stat.S_ISLNK(mode):
                members.append(_Member(name, b"", link=content.decode()))
            else:
                members.append(_Member(name, content, bool(mode & 0o100)))
        return file.comment.decode("ascii", "replace"), members


def _refuse_outside(archive: Path, name: PurePosixPath, link: str) -> None:
    depth = 0
    for part in (*name.parent.parts, *PurePosixPath(link).parts) if link else name.parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            message = f"{archive.name} has {name}, which leads out of its folder"
            hint = "hpcbert does not unpack such an archive: check where it comes from."
            raise IncompleteError(message, hint=hint)


# Enough for a large repository over a slow link.
_GIT_TIMEOUT = 3600.0
_GIT_ENV = {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def prepare_source(recipe: Recipe, site: Site, context: Context) -> Part:
    """Prepare a framework's program.

    Raises:
        IncompleteError: It can't be fetched, or was changed.
    """
    if own_checkout := site.settings(recipe.name).source:
        return _check_own_checkout(own_checkout)
    builds_source = recipe.environment and recipe.environment.builds_source
    is_built = builds_source and materials.runs_in_environment(site, recipe)
    is_needed = "source" in recipe.needs or recipe.image.copy or is_built
    is_installed = materials.comes_with_environment(site, recipe)
    if is_installed or not (recipe.source.commit and is_needed):
        where = "comes with its environment" if is_installed else "is not taken from a checkout"
        return Part("skipped", f"the program {where}")
    path = materials.source_record_path(site, recipe)
    directory = materials.record_directory(path)
    existing_record = materials.read_record(path)
    name = f"{without_user(recipe.source.repository)}@{recipe.source.commit[:12]}"
    if existing_record and directory.is_dir():
        return _check_checkout(recipe, name, directory, existing_record["digest"], context)
    if context.dry:
        return Part("planned", f"would check out {name} in {directory}")
    url = site.settings(recipe.name).repository or recipe.source.repository
    with make_alone(directory, "checkout", path), translate_errors("write", directory):
        context.say(f"fetching {recipe.source.commit[:12]} of {without_user(url)}")
        commit, digest = _fetch_program(recipe, url, directory, context)
        content = {"repository": without_user(recipe.source.repository), "commit": commit}
        content |= {"digest": digest}
        write_record(path, {**content, "patches": list(recipe.source.patches)})
    return _describe_checkout(recipe, "done", name, directory, digest)


def _check_own_checkout(path: str) -> Part:
    if Path(path).is_dir():
        return Part("ready", "the site's own checkout", path)
    hint = "If only the nodes have that path, all is well."
    return Part("skipped", "the site's checkout is not on this machine", path, hint=hint)


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
    raise IncompleteError(detail, where=str(directory), hint=hint)


def _describe_checkout(
    recipe: Recipe, status: Status, name: str, directory: Path, digest: str
) -> Part:
    if recipe.source.incomplete:
        hint = f"Complete a copy, and name it: frameworks.{recipe.name}.source."
        detail = f"{name} exists, but can't run as it is: {recipe.source.incomplete}"
        return Part("failed", detail, str(directory), digest, hint=hint)
    return Part(status, name, str(directory), digest)


def _fetch_program(recipe: Recipe, url: str, directory: Path, context: Context) -> tuple[str, str]:
    """Fetch a program into a new directory and patch it.

    Returns:
        The commit, or the digest of an archive without a commit; and the digest of the tree.
    """

    def git(*words: str) -> str:
        argv = ["git", "-C", str(directory), "-c", "core.autocrlf=false", *words]
        outcome = context.run(argv, env={**context.env, **_GIT_ENV}, timeout=_GIT_TIMEOUT)
        if not outcome.ok:
            message = redact.mask_text(" ".join(outcome.stderr.split()))
            hint = "Prepare on a host that can reach the repository"
            if "dubious ownership" in message:
                hint = "Run the command that git names, if you trust its owner"
            hint += f", or name another with --repository or frameworks.{recipe.name}.repository."
            raise IncompleteError(f"git {words[0]} failed: {without_user(message)}", hint=hint)
        return outcome.stdout.strip()

    directory.mkdir()
    if is_archive(url):
        commit = unpack(Path(url).expanduser().absolute(), directory, recipe.source.path)
        if commit != recipe.source.commit and not commit.startswith("sha256:"):
            raise IncompleteError(
                f"{url} has commit {commit[:12]}, but the recipe needs {recipe.source.commit[:12]}",
                hint=f"Name an archive of that commit as frameworks.{recipe.name}.repository.",
            )
        git("init", "--quiet")
        git("add", "--all", "--force", ".")
    else:
        commit = recipe.source.commit
        git("init", "--quiet")
        _fetch_commit(git, url, commit)
    for patch in recipe.source.patches:
        git("apply", "--index", "--whitespace=nowarn", str(Path(recipe.folder) / patch))
    return commit, "git-tree:" + git("write-tree")


def _fetch_commit(git: Callable[..., str], url: str, commit: str) -> None:
    try:
        shallow = ("--depth=1", "--no-tags")
        git("fetch", "--quiet", *shallow, url, commit)
    except IncompleteError:
        # Servers may refuse a commit that no branch or tag points to: then fetch everything.
        refs = ("+refs/heads/*:refs/remotes/all/*", "+refs/tags/*:refs/tags/*")
        git("fetch", "--quiet", url, *refs)
    git("checkout", "--quiet", "--detach", commit)
