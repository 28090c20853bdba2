"""What is in force around the code, and where the user is: one hashable record of all scopes. Pure."""
