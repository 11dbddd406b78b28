"""In which number format a forward pass runs."""

from __future__ import annotations

import contextlib

import torch


def forward_precision(precision: str, device: torch.device) -> contextlib.AbstractContextManager:
    """Autocast for bf16, nothing for fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
