"""Training on the device: plain ONNX graphs that a stock engine executes, without torch.

``Trainer`` makes updates of a task that ``sanderling learn prepare`` wrote. It needs NumPy, an engine and safetensors.
"""

from sanderling.learn.trainer import Trainer

__all__ = ["Trainer"]
