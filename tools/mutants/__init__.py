"""Plants mistakes of one line, each alone, in the modules that keep the promises, and tells which go unnoticed."""
