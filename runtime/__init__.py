"""What runs a model: program, engine, sampling, and the Python front door."""
