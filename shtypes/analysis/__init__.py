"""What a traced program says: its equations, its communication, its typed listing."""
