"""What should happen: pure in-memory models, and the Hypothesis machines that hold the engine against them."""
