"""The ground floor: errors, tensor specs, statistics, files. Knows no other room."""
