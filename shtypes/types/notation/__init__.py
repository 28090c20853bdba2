"""Types as text: reading, printing, and dim names. Here, and nowhere else, the policy and dim names act."""
