"""Hooks that other plug-ins and conftest files may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_specdec.results import BenchmarkResult
    from pytest_specdec.spec import ServerSpec


@pytest.hookspec(firstresult=True)
def pytest_specdec_adapt_spec(spec: ServerSpec, config: pytest.Config) -> ServerSpec | None:
    """Replace a spec at collection, before the plan is made; None leaves it as it is.

    For what holds on one site only, such as the directory where models lie::

        def pytest_specdec_adapt_spec(spec, config):
            return spec.but(spec.name, env={"HF_HOME": "/data/hf"})
    """


@pytest.hookspec
def pytest_specdec_result(result: BenchmarkResult, config: pytest.Config) -> None:
    """Called once for each measurement, after it was judged and written.

    For sending figures elsewhere::

        def pytest_specdec_result(result, config):
            gauge("decode_tok_s", result.decode_tok_s.value, server=result.measurement.spec.name)
    """
