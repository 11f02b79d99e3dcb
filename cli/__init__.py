"""Every way in: the terminal commands, one a file."""
