"""A real Slurm cluster on one machine: munge, MariaDB, slurmdbd, slurmctld, a slurmd per node.

Each node is a process with its own network, mount, host-name, IPC and PID namespace: four hosts
with their own addresses, names, /tmp and processes share one machine, and ending that one process
ends everything on the node. The lab never touches the machine's own Slurm: it has its own key,
sockets, data, ports and configuration.
"""
