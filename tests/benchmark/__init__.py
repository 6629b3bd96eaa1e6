"""Speeds that the harness promises; `pytest tests/benchmark`."""
