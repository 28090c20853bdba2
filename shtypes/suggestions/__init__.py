"""What a reader gets of the solver: plans that print, are edited, compared, saved and applied."""
