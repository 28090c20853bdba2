"""Chooses the types of a whole program: decision variables, their costs, and the minimum."""
