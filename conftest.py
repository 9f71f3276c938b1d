"""The project's own tests. The plug-in itself is installed, and found by its entry point."""

from __future__ import annotations

# pytest takes this only from the root: tests/plugin runs sessions of its own with it.
pytest_plugins = ["pytester"]
