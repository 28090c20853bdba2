"""Control flow over typed values: loops, branches, `vmap`, and printing from inside."""
