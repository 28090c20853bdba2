"""The modules of the public surface that consist of ops: random, init, nn, linalg, fft."""
