"""The HTTP server: three dialects over one kind of request, and a page to chat in."""
