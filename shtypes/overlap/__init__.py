"""Einsums that overlap with the collective before or after them: permutations round a ring, a product at each stop."""
