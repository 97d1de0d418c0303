"""What people come for: pictures and their labels, text, both."""
