"""What should happen: pure in-memory models, and the machines that hold the engine against them."""
