"""The CPU engine: what a launch is given so that stock SGLang serves on a CPU without AMX.

An environment, not a library: nothing of the package imports it. ``site/`` goes first on the server's
``PYTHONPATH``, ``environment.json`` into its environment, and ``tiny_models.py`` is run with its Python.
"""
