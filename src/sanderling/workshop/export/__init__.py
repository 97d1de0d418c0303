"""From what the user has (ONNX, torch.export, a factory, a pickled module) to one checked ONNX graph."""
