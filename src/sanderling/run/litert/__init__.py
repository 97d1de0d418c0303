"""Writes ONNX graphs as TFLite flatbuffers, for LiteRT; what is not exact in TFLite is refused by operator.

``graph`` walks the ONNX graph, ``values`` knows each tensor in both layouts, ``quantization`` reads Q/DQ nodes,
``operators`` has one small function for each operator, and ``flatbuffer`` writes the bytes.
"""
