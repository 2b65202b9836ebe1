"""Checkpoints that several tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp


@pytest.fixture(scope="session")
def state() -> dict[str, Any]:
    """A state of several types and shapes."""
    generator = torch.Generator().manual_seed(1)
    return {
        "layer": {
            "weight": torch.randn(6, 8, generator=generator),
            "half": torch.randn(5, generator=generator).to(torch.bfloat16),
            "small": torch.randn(4, generator=generator).to(torch.float8_e4m3fn),
        },
        "count": torch.tensor(3),
        "empty": torch.empty(0, 3),
        "step": 7,
        "optim": {"lr": 0.1, "betas": (0.9, 0.99), "name": "adam"},
    }


@pytest.fixture(scope="session")
def place(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state as PyTorch saves it."""
    folder = tmp_path_factory.mktemp("stock") / "step-7"
    dcp.save(state, checkpoint_id=folder)
    return str(folder)


def file_of(place: str) -> Path:
    """The only data file of a checkpoint."""
    (file,) = Path(place).glob("*.distcp")
    return file
