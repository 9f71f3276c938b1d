# Shared by the scripts beside it: where things are, and how the two environments are made. Sourced, not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${PYTEST_SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
requirements=$root/pytest_specdec/cpu_engine/requirements.txt

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.10 python3.13 python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys, venv; raise SystemExit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "no Python of at least 3.10 with the venv module was found; set PYTHON to one" >&2
    return 1
}

# A content key: the same requirements on the same Python give the same folder, whichever clone asks.
key_of() {
    "$python" - "$@" <<'PY'
import hashlib, pathlib, platform, sys
digest = hashlib.sha256(f"{sys.version_info[:2]} {platform.machine()} {sys.executable}".encode())
for name in sys.argv[1:]:
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest()[:12])
PY
}

# pip, with a retry: a registry that hiccups must not cost a whole run.
pip_install() {
    local env=$1 attempt
    shift
    for attempt in 1 2 3; do
        if "$env/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >>"$env/install.log" 2>&1; then
            return 0
        fi
        echo "pip install failed (attempt $attempt of 3); the end of its log:" >&2
        tail -n 5 "$env/install.log" >&2
        sleep $((attempt * 5))
    done
    return 1
}

# Stock SGLang for the CPU engine, in one virtual environment in the cache directory (about 11 GB, 5 minutes).
# Nothing is installed when PYTEST_SPECDEC_PYTHON names a Python that has it already.
setup_engine() {
    local key env
    if [ -n "${PYTEST_SPECDEC_PYTHON:-}" ]; then
        engine_python=$PYTEST_SPECDEC_PYTHON
        return
    fi
    key=$(key_of "$requirements")
    env=$cache/engine-$key
    mkdir -p "$cache"
    exec 9>"$cache/engine-$key.lock"
    flock 9
    if [ ! -e "$env/complete" ]; then
        local free_gb
        free_gb=$(df -P -BG "$cache" | awk 'NR == 2 { sub("G", "", $4); print $4 }')
        if [ "$free_gb" -lt 15 ]; then
            echo "the engine needs about 11 GB under $cache, and only $free_gb GB are free" >&2
            return 1
        fi
        echo "installing SGLang into $env (about 11 GB, about 5 minutes, once) ..." >&2
        rm -rf "$env"
        "$python" -m venv "$env"
        pip_install "$env" -r "$requirements"
        touch "$env/complete"
    fi
    exec 9>&-
    engine_python=$env/bin/python
}

# The plug-in of this checkout with its tools, in .venv.
setup_project() {
    local key env=$root/.venv
    key=$(key_of "$root/pyproject.toml" "$root/scripts/lib.sh")
    if [ "$(cat "$env/complete" 2>/dev/null)" != "$key" ]; then
        echo "installing pytest-specdec and its tools into .venv ..." >&2
        rm -rf "$env"
        "$python" -m venv "$env"
        pip_install "$env" --upgrade 'pip>=25.1'
        (cd "$root" && pip_install "$env" --editable . --group dev)
        echo "$key" >"$env/complete"
    fi
    project_python=$env/bin/python
}

# A real sshd for the tests of remote hosts; started by the tests themselves, with keys and a configuration of theirs.
setup_sshd() {
    if PATH=$PATH:/usr/sbin command -v sshd >/dev/null && command -v ssh >/dev/null; then
        return
    fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "the tests of remote hosts need sshd and ssh: install openssh-server and openssh-client" >&2
        return 1
    fi
    echo "installing openssh-server ..." >&2
    apt-get update -qq >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server openssh-client >/dev/null
}

python=$(find_python)
