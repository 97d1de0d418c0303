"""INT8 by static quantisation: observe, choose ranges, insert QuantizeLinear and DequantizeLinear."""
