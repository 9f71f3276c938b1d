"""The layers of the package, held by its imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_specdec

PACKAGE = Path(pytest_specdec.__file__).parent

LAYERS: dict[int, set[str]] = {
    0: {"observed", "errors", "host_locks", "commandline", "flags", "flag_probe", "guard", "spec", "model"},
    1: {
        "arrivals",
        "stats",
        "quantiles",
        "noise",
        "sequential",
        "detectable",
        "floors",
        "decide",
        "paired",
        "ranking",
        "metrics",
        "serving_fields",
        "validity",
        "validity_run",
        "validity_requests",
        "validity_server",
        "validity_machine",
        "settings",
        "jsonfile",
        "workloads",
        "workload_formats",
        "synthetic",
        "long_context",
        "conversation",
        "clock",
        "communication",
        "hosts",
        "owned",
        "renames",
    },
    2: {
        "baseline_admin",
        "baseline_reading",
        "baseline_store",
        "verdicts",
        "environment",
        "blame",
        "compare",
        "difference",
        "beside",
        "verdict_text",
        "report",
        "page",
        "ledger",
        "study",
        "study_table",
        "answers",
        "client",
        "http_stream",
        "load",
        "activity",
        "agreement",
        "launch_history",
        "log_trouble",
        "logwatch",
        "decode_log",
        "progress",
        "fingerprint",
        "engine_env",
        "catalogue",
        "containers",
        "diagnose",
        "diagnose_log",
        "baseline",
        "drafting",
        "sweeps",
        "sweep_report",
        "gpus",
        "option_table",
        "ssh",
        "ssh_connection",
        "ssh_wire",
        "carrier",
        "lease",
        "lease_channel",
        "comm_probe",
        "comm_baseline",
        "leased_host",
        "find_kept",
        "kept",
        "supervisor",
    },
    3: {
        "occupancy",
        "server",
        "readiness",
        "in_use",
        "stopping",
        "bench",
        "preflight",
        "expected",
        "chat_template",
        "gpu_watch",
        "round_watch",
        "comm_bench",
    },
    4: {
        "attach",
        "comm_session",
        "benchmark_table",
        "dead_ends",
        "host_pool",
        "keeping",
        "served",
        "distribution",
        "plan",
        "declare",
        "pool",
        "results",
        "serving",
        "terminal",
        "closing",
        "handles",
        "judging",
        "sweeping",
        "baseline_updates",
        "session",
    },
    5: {"hookspecs", "options", "plugin", "cli", "baselines_cli", "servers_cli", "study_cli"},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
MAY_IMPORT_PYTEST = {"options", "session", "hookspecs", "plugin"}


def modules() -> list[str]:
    return sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def runtime_imports(name: str) -> set[str]:
    """Every module that running this one can import, lazy ones included, type-checking ones left out."""
    tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            found.add(str(node.module))
            if node.module == "pytest_specdec":
                found.update(f"pytest_specdec.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def test_every_module_has_a_layer() -> None:
    assert sorted(LAYER_OF) == modules()


def test_the_page_on_how_it_works_names_every_module_in_its_layer() -> None:
    page = (PACKAGE.parent / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    rows = {int(layer): row for layer, row in re.findall(r"^\| (\d) \| (.*) \|$", page, re.MULTILINE)}

    missing = {layer: [n for n in sorted(names) if f"`{n}`" not in rows[layer]] for layer, names in LAYERS.items()}

    assert not any(missing.values()), missing


@pytest.mark.parametrize("name", sorted(LAYER_OF))
def test_imports_go_down_or_stay_in_the_layer(name: str) -> None:
    ours = {imported.split(".")[1] for imported in runtime_imports(name) if imported.startswith("pytest_specdec.")}

    above = {imported for imported in ours if LAYER_OF[imported] > LAYER_OF[name]}

    assert not above, f"{name} (layer {LAYER_OF[name]}) imports upwards: {sorted(above)}"


@pytest.mark.parametrize("name", sorted(set(LAYER_OF) - MAY_IMPORT_PYTEST))
def test_only_the_top_imports_pytest(name: str) -> None:
    roots = {imported.split(".")[0] for imported in runtime_imports(name)}

    assert not roots & {"pytest", "_pytest"}


def test_one_module_meets_pytest_benchmark() -> None:
    meet = [name for name in modules() if any(i.startswith("pytest_benchmark") for i in runtime_imports(name))]

    assert meet == ["benchmark_table"]


@pytest.mark.parametrize("name", sorted(LAYER_OF))
def test_no_module_imports_the_cpu_engine(name: str) -> None:
    assert not any("cpu_engine" in imported for imported in runtime_imports(name))


def test_there_are_no_import_cycles() -> None:
    graph = {
        name: {i.split(".")[1] for i in runtime_imports(name) if i.startswith("pytest_specdec.")} for name in modules()
    }
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name in done:
            return
        for imported in sorted(graph[name]):
            walk(imported, (*path, name))
        done.add(name)

    for name in graph:
        walk(name, ())


def test_importing_the_plugin_loads_neither_torch_nor_an_http_library_nor_pytest_benchmark() -> None:
    heavy = [
        "torch",
        "requests",
        "urllib3",
        "httpx",
        "aiohttp",
        "http.client",
        "asyncio",
        "jinja2",
        "numpy",
        "scipy",
        "sglang",
        "pytest_benchmark",
    ]
    code = (
        "import sys, pytest; before = set(sys.modules); import pytest_specdec.plugin; "
        f"print([m for m in {heavy!r} if m in sys.modules and m not in before])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_pytest_version_with_the_plugin_starts_no_process() -> None:
    code = (
        "import sys\n"
        "started = []\n"
        "sys.addaudithook(lambda event, args: started.append((event, args)) "
        "if event in ('subprocess.Popen', 'os.system', 'os.posix_spawn', 'os.fork', 'os.exec') else None)\n"
        "import pytest\n"
        "code = pytest.main(['--version']) or pytest.main(['-p', 'no:benchmark', '--version', '--version'])\n"
        "assert 'pytest_specdec.plugin' in sys.modules, 'the second form loads plug-ins'\n"
        "print(int(code), started)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip().splitlines()[-1] == "0 []"
