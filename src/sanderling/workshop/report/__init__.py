"""The report of a build: one HTML file with its pictures inside, readable without a server."""
