"""Communication scopes (`no_comm`, `comm_budget`, `implicit_comm`) and checks of reshards against them."""
