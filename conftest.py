"""Nothing here: the plug-in is installed, and found by its entry point. The file marks the root for pytest."""
