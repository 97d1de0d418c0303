"""Packages over the network: the open inference protocol over HTTP and gRPC, on one data plane."""
