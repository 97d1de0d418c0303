"""Training on the device: plain ONNX graphs that a stock engine executes, without torch.

``Trainer`` makes updates of a task that ``sanderling learn prepare`` wrote; ``AdapterSession`` runs it with several
sets of parameters. Both need NumPy, an engine and safetensors.
"""

from sanderling.learn.adapters import AdapterSession
from sanderling.learn.trainer import Trainer

__all__ = ["AdapterSession", "Trainer"]
