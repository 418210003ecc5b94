"""A stand-in for enroot 4.1: real user and mount namespaces on real squashfs images, no privileges.

Runs under `python3 -IS`, from the standard library alone. Left out: bundles, `load`, `batch`,
namespaces for PID, network, IPC and UTS, the seccomp filter, hooks of a system directory, enroot.conf,
and squashfuse: an image file that is started directly is unpacked into memory instead.
"""
