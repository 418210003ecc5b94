"""A stand-in for pyxis 0.24: its options for srun, on top of whichever enroot there is.

The real one is a plugin of slurmstepd. Here a command named srun takes the options away and starts
the real srun with an adapter before the command; Slurm's task epilog does what has to be done when
a task ends. Runs under `python3 -IS`, from the standard library alone.

Left out: --container-save, -entrypoint-log and -unshare, PYXIS_CONTAINER_* variables, options in
batch scripts, the seccomp filter. Containers with a name belong to a job, as with
container_scope=job; the real plugin removes them when the job ends, here nobody does.
"""
