"""MindSpore Lite's native library: fetched and compiled on request, called in processes of its own."""
