"""The ops on a GPU, file by file as in cpu/."""
