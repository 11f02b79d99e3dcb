"""The operations on the CPU, compiled by Numba; a file an operation, each with two layouts.

`*_rows` handle up to 8 tokens, each a row of values. `*_lanes` handle many tokens, LANES of them
side by side in a vector: activations are [block of LANES tokens][column][lane], so that every
operation over columns is elementwise and the matmul broadcasts weights over tokens.
"""
