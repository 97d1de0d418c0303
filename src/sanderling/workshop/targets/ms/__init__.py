"""Models for MindSpore Lite: `.ms` files, written by its own converter, and read without it."""
