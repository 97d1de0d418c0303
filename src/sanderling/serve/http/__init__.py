"""HTTP: a protocol of our own for inference, and an ASGI application for every other route."""
