"""Training on the device: plain ONNX graphs that a stock engine executes, without torch."""
