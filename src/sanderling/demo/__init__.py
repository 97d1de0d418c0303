"""The demonstration: a real pretrained network on real photos, from PyTorch to INT8."""
