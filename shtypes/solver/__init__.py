"""Types of a whole program, found: what may be chosen, what it costs, and the choice that costs least."""
