"""Dense peaks of GPUs at each precision, as their vendors state them.

Sources: NVIDIA's data sheets "V100" (2020), "A100 80GB" (2021), "H100", "H200" and "GH200" (2024),
"HGX B200" (2025); from H100 on they state tensor cores with sparsity, which is twice the dense
peak. The table is that of hpcbert/workloads/bert_pretrain.py, which can't import it; a test
compares the two.
"""

from __future__ import annotations

import re

_A100 = {"fp16": 312.0, "bf16": 312.0, "tf32": 156.0, "fp32": 19.5}
_H100 = {"fp16": 989.5, "bf16": 989.5, "tf32": 494.5, "fp32": 67.0}
_H100_NVL = {"fp16": 835.5, "bf16": 835.5, "tf32": 417.5, "fp32": 60.0}
# 10^12 operations per second, by the driver's name for the GPU.
PEAKS = {
    r"(NVIDIA |Tesla )V100-SXM2-(16|32)GB": {"fp16": 125.0, "fp32": 15.7},
    r"(NVIDIA |Tesla )V100-PCIE-(16|32)GB": {"fp16": 112.0, "fp32": 14.0},
    r"(NVIDIA )?A100-(SXM4|SXM|PCIE)-(40|80)GB|NVIDIA A100 80GB PCIe": _A100,
    r"NVIDIA (H100 80GB HBM3|H200|GH200 \d+GB)": _H100,
    r"NVIDIA (H100 NVL|H200 NVL)": _H100_NVL,
    r"NVIDIA H100 PCIe": {"fp16": 756.5, "bf16": 756.5, "tf32": 378.0, "fp32": 51.0},
    r"NVIDIA B200": {"fp16": 2250.0, "bf16": 2250.0, "tf32": 1100.0, "fp32": 75.0},
}


def peak(gpu: str, precision: str) -> float | None:
    """Return a GPU's dense peak in operations per second; None if no data sheet is known."""
    for pattern, peaks in PEAKS.items():
        if re.fullmatch(pattern, gpu) and precision in peaks:
            return peaks[precision] * 1e12
    return None
