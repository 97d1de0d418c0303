"""Models of several branches: what INT8 costs their answers, branches at once, and pictures seen before."""
