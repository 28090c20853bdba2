"""The notation of types: parsing, printing, and dim names. Only here do the policy and dim names matter."""
