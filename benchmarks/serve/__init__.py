"""How quickly packages are served."""
