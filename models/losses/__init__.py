"""The losses, one idea a file; `total` adds up those that are switched on."""
