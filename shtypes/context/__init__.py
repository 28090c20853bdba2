"""The settings around the code, in one hashable record of all scopes, and the user's line."""
