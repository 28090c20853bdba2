"""What a traced program says: its equations, its communication, and what scopes see of it."""
