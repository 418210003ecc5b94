"""What enroot and pyxis print when something is wrong, its meaning, and what to do; pure.

A row is found by the words of the programs, in upper or lower case. The sources are the programs
themselves (NVIDIA/enroot 4.1.2, NVIDIA/pyxis 0.24.0) and the issues named below each row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Symptom:
    """One kind of problem.

    Attributes:
        name: Short name, for checks and tests.
        shows: Regular expression to find in the output.
        problem: One sentence.
        hint: What to change, and where.
    """

    name: str
    shows: str
    problem: str
    hint: str


# The first match wins: special rows come before general ones.
SYMPTOMS: tuple[Symptom, ...] = (
    Symptom(
        "capabilities",
        r"aufs2ovlfs: failed to set capabilities|mksquashovlfs: failed to set capabilities",
        "enroot's helpers lack their file capabilities, so that users can't import images.",
        "Have the package enroot+caps installed on this host (getcap shows whether it is), or "
        "import on a host that has it: hpcbert prepare --on-node.",
        # enroot #141, enroot #44, enroot #79
    ),
    Symptom(
        "user-namespaces",
        r"failed to create user namespace",
        "This host does not let users create user namespaces.",
        "Ask the administrator to check the sysctls user.max_user_namespaces and "
        "kernel.unprivileged_userns_clone, and at AppArmor; inside a job too.",
        # enroot #247, enroot #61, enroot #238
    ),
    Symptom(
        "runtime-path",
        r"mkdir: cannot create directory .*(/run/|enroot).*: (Permission denied|No such file)",
        "enroot can't make the directories that it keeps its state in.",
        "Set container.scratch in the site.toml, or ENROOT_RUNTIME_PATH (CACHE, DATA, TEMP) to a "
        "directory that is writable on this host.",
        # pyxis #12, pyxis #62, pyxis #138
    ),
    Symptom(
        "foreign-cache",
        # Also in other languages: `No se puede efectuar open`.
        r"tar( \(child\))?: (.*: )?Cannot open: Permission denied"
        r"|tar \(child\): \S*/[0-9a-f]{64}: (?!Cannot open: No such file)"
        r"|zstd: (error \d+ : )?.*[0-9a-f]{64}.*: Permission denied",
        "enroot's CACHE holds layers that another user downloaded and you may not read.",
        "Give each user a cache: container.scratch in the site.toml, or ENROOT_CACHE_PATH with "
        "$(id -u) in enroot.conf, which only an administrator can change for pyxis.",
        # pyxis #121
    ),
    Symptom(
        "root-squash",
        r"enroot-mount: failed to mount: \S+ at \S+: (Permission denied|Operation not permitted)"
        r"|mount \S+->\S+ error: while mounting .*permission denied",
        "A directory to mount can't be reached on this node: its file server refuses this user "
        "(root squash, if you are root), or a folder above it is closed.",
        "Run as a user who can list the directory on a node, or have it exported with "
        "no_root_squash; container.mounts and frameworks.NAME.data in the site.toml name it.",
        # enroot #140
    ),
    Symptom(
        "noexec",
        r"enroot-switchroot: failed to execute: \S+: Permission denied"
        r"|exec /\.singularity\.d/actions/\w+ failed: .*permission denied",
        "No program can be run from the directory of unpacked containers: its file system is "
        "mounted with noexec.",
        "Set container.scratch in the site.toml, or ENROOT_DATA_PATH, to a directory whose mount "
        "has no noexec (findmnt -T DIRECTORY shows the options).",
        # enroot #63, enroot #156
    ),
    Symptom(
        "no-container",
        r"container with name \S+ does not exist",
        "A step found no container of its job on this node: it was removed, or the steps of a job "
        "keep their containers in different places.",
        "ENROOT_DATA_PATH in enroot.conf must be one path for all steps of a job on a node, below "
        "no $TMPDIR or step id, and nothing may empty it while jobs run.",
        # enroot #249, pyxis #172
    ),
    Symptom(
        "whiteouts",
        r"failed to create (ovlfs )?whiteout|failed to mount overlay: Invalid argument"
        r"|ovlfs.*(Operation not (supported|permitted)|Invalid argument)",
        "enroot's TEMP lies on a file system that can't hold an image's layers: NFS, Lustre, "
        "an overlay, or some kind of tmpfs.",
        "Set ENROOT_TEMP_PATH, or container.scratch in the site.toml, to a directory on a local "
        "disk.",
        # pyxis #87, enroot #30, enroot #69
    ),
    Symptom(
        "no-space",
        r"No space left on device|Disk quota exceeded",
        "There is not enough space.",
        "The peak is three to four times the unpacked image, over enroot's CACHE, TEMP, DATA and "
        "the directory of images: free some, or move them (container.images, container.scratch).",
        # enroot #187, enroot #39, pyxis #41, pyxis #53
    ),
    Symptom(
        "too-many-requests",
        r"error code: 429|Too Many Requests|toomanyrequests",
        "The registry accepts no more requests for now.",
        "Log in (a line in enroot's .credentials) and try again later; once it is prepared, no job "
        "asks the registry again.",
    ),
    Symptom(
        "basic-over-http2",
        # A token that is refused has another address: .../token, .../auth.
        r"Using credentials from file(?!.*Authentication succeeded)"
        r".*/v2/\S+/(manifests|blobs)/\S+ returned error code: 401",
        "enroot sent no password: over HTTP/2 it does not recognize the header of Basic "
        "authentication in curl's output, which is in lower case there.",
        "Write the line http1.1 into ~/.curlrc, on each host that imports.",
    ),
    Symptom(
        "unknown-authority",
        r"unable to get (local )?issuer certificate|self[- ]signed certificate"
        r"|server certificate verification failed|certificate signed by unknown authority"
        r"|issuer has been marked as not trusted|issuer is not recognized|unknown CA"
        r"|unable to verify the first certificate|error setting certificate (verify|file|path)"
        r"|error adding trust anchors|error reading ca cert|unknown certificate authority",
        "This host does not know the authority that signed the registry's certificate.",
        'Write the line cacert = "/path/of/ca.pem" into ~/.curlrc (enroot), or set SSL_CERT_FILE '
        "(Apptainer); or have the certificate added to the system's.",
    ),
    Symptom(
        "unauthorized",
        r"error code: 40[13]|401 Unauthorized|403 Forbidden|unauthorized: |denied: requested access"
        r"|invalid username/password|unable to retrieve auth token",
        "The registry refuses this account, or has no such image for it.",
        "Look at ~/.config/enroot/.credentials, a line `machine HOST login USER password WORD` "
        "for the registry; nvcr.io needs one for authn.nvidia.com too, with the login $oauthtoken "
        "as it stands. ENROOT_CONFIG_PATH names that folder, not the file.",
        # pyxis #39, pyxis #99, enroot #161, enroot #14, enroot #241
    ),
    Symptom(
        "not-found",
        r"error code: 404|404 Not Found|manifest unknown",
        "The registry has no such image, or has it in a form that this enroot can't ask for.",
        "Check name and tag. If they are right: some registries give OCI manifests to newer "
        "enroots only; push it as docker schema 2, or use another registry.",
        # enroot #277, enroot #148, enroot #146
    ),
    Symptom(
        "rootfs-lock",
        r"Could not acquire rootfs lock",
        "Several containers are started from one directory at a time.",
        "Keep enroot's DATA on each node's own disk: container.scratch in the site.toml.",
        # enroot #154
    ),
    Symptom(
        "exists",
        r"File already exists",
        "A killed import left half an image behind, or two imports wrote to one name.",
        "hpcbert images list shows leftovers; hpcbert images remove --leftovers removes them.",
    ),
    Symptom(
        "nvidia-hook",
        r"98-nvidia\.sh exited",
        "The image needs GPUs, but this node has no driver or no nvidia-container-cli.",
        'Set NVIDIA_VISIBLE_DEVICES = "void" in [env] of the site.toml for nodes without GPUs.',
        # pyxis #101, pyxis #110, enroot #105, enroot #232, enroot #234
    ),
    Symptom(
        "fuse",
        r"failed to open /dev/fuse|fuse: device not found",
        "Users may not open /dev/fuse.",
        "Ask the administrator to give it mode 0666, or to install fuse3.",
    ),
    Symptom(
        "memory",
        r"(mk|un)squashfs.*(Out of memory|Cannot allocate memory)|FATAL ERROR: *Out of memory",
        "squashfs-tools had too little memory.",
        "Give the job more (slurm.memory), or import outside of it.",
        # pyxis #120, enroot #224
    ),
    Symptom(
        "plugin-version",
        r"Incompatible plugin version|plugin_load_from_file",
        "pyxis was built for another release of Slurm.",
        "Ask the administrator to rebuild it for this one.",
        # pyxis #95, pyxis #150
    ),
    Symptom(
        "no-program",
        r"there is no enroot on|enroot: (no such program|command not found)",
        "There is no enroot on this host.",
        "Install it, or prepare on a host that has it: hpcbert prepare --on-node.",
    ),
    Symptom(
        "no-host",
        r"Could not resolve host|Connection refused|Failed to connect|Connection timed out"
        r"|Network is unreachable|no such host|i/o timeout|Operation timed out"
        r"|No route to host|TLS handshake timeout",
        "The registry can't be reached from this host.",
        "Prepare on a host that reaches it (login node, or --on-node), or set https_proxy.",
    ),
    # Last: enroot prints nothing more if the password is wrong.
    Symptom(
        "wrong-password",
        r"Authenticating with user: (?!.*Authentication succeeded)",
        "The registry refuses the login.",
        "enroot prints only this if user or password are wrong: check the registry's "
        "line in ~/.config/enroot/.credentials.",
        # enroot #277
    ),
)


def find_symptom(output: str) -> Symptom | None:
    """Return the first row that matches the output of a failed program; None if none does."""
    for symptom in SYMPTOMS:
        if re.search(symptom.shows, output, re.IGNORECASE | re.DOTALL):
            return symptom
    return None
