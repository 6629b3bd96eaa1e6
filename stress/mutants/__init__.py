"""Do the instruments see? Every mutant is shown to them, and so is the engine as it is."""
