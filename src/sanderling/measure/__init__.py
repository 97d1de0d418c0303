"""Where numbers come from: samples, accuracy, latency, memory, inspection, bench and verify."""
