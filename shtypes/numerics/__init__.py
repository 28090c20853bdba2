"""The public modules of ops: random, init, nn, linalg, fft, tree."""
