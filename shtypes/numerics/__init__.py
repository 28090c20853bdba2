"""The modules of the public surface that are made of ops: random, init, nn, linalg, fft."""
