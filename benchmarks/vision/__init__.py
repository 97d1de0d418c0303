"""What pictures and streams cost around the model."""
