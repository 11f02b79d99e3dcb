"""From ops to launches, file by file as the kernels; nothing here imports Numba."""
