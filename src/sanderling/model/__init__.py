"""ONNX graphs (read, check, cost) and the package format."""
