"""Training data for BERT: one stream of samples, written in every format that a recipe reads."""

from __future__ import annotations
