"""What may be communicated: `no_comm`, `comm_budget`, `implicit_comm`, and how a move is judged by them. Pure."""
