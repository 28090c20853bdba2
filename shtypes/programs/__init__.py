"""How a program is compiled and run: `jit`, its stages, and its arguments."""
