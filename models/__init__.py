"""What a model is, at rest: container, architecture, weights, text, store."""
