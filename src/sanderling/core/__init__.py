"""The ground floor: errors, tensor specs, statistics, files, pictures. Knows no other room."""
