"""Benches: what was measured, side by side, and what it amounts to. `stress/bench` measures."""
