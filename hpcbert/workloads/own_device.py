"""Runs a Horovod program whose rank sees fewer GPUs than its node has ranks.

    python own_device.py PROGRAM.py [WORD …]

Such programs take `hvd.local_rank()` as the number of their GPU. Here it answers HPCBERT_DEVICE, a
number among the GPUs that the rank sees. Every framework's module asks this one class (horovod
0.19.0 to 0.28.1, horovod/common/basics.py). Images have Pythons as old as 3.5.
"""
# ruff: noqa: I002, PTH100, PTH120  so old a Python has neither

import os
import runpy
import sys

from horovod.common.basics import HorovodBasics

HorovodBasics.local_rank = lambda _: int(os.getenv("HPCBERT_DEVICE", "0"))
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
