"""Text to batches: sources, tokenizers, the token cache and the order of samples."""

from __future__ import annotations

from diloco.train.data.config import DataConfig
from diloco.train.data.data import Data, open_data

__all__ = ["Data", "DataConfig", "open_data"]
