"""The server: one data plane under HTTP, gRPC, metrics and a dashboard."""
