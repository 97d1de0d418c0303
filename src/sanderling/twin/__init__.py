"""The twin: the runtime's own decisions on a virtual clock, to try a policy before it ships."""
