"""Language models: measured."""
