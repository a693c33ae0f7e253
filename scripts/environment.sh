# Sourced by the scripts beside it: makes sure that .venv in the repository root is there and holds
# what requirements/ and pyproject.toml ask for. Says what it does on stderr; stdout stays free.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "$*" >&2; }

die() {
    say "error: $1"
    say "       $2"
    exit 78
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    die "no Python 3.11, 3.12 or 3.13 was found; python3 is $(python3 -V 2>/dev/null || echo missing)" \
        "Install one, or name it: PYTHON=/path/to/python3.11 $0"
}

# What .venv is made from.
wanted_stamp() {
    "$1" - <<'PYTHON'
import hashlib, pathlib
digest = hashlib.sha256()
for path in (*sorted(pathlib.Path("requirements").glob("*.txt")), "pyproject.toml", "scripts/install"):
    digest.update(pathlib.Path(path).read_bytes())
print(digest.hexdigest())
PYTHON
}

# An environment breaks when its Python is removed or its folder is moved.
environment_works() {
    .venv/bin/python -c pass 2>/dev/null && grep -qsF " $PWD/.venv" .venv/pyvenv.cfg
}

# Runs a long command with its output in a file, and says now and then how far it is.
wait_for() {
    local log="$1" begun=$SECONDS pid
    shift
    "$@" >"$log" 2>&1 </dev/null &
    pid=$!
    trap 'kill "$pid" 2>/dev/null || true' EXIT
    trap 'exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        if (((SECONDS - begun) % 10 == 0)); then
            say "  $((SECONDS - begun)) s, $(du -sm .venv | cut -f1) MB on disk"
        fi
    done
    trap - EXIT INT TERM
    wait "$pid"
}

make_environment() {
    local python="$1"
    say "Making .venv with $("$python" -V)"
    if ! "$python" -m venv --clear .venv >&2; then
        rm -rf .venv
        die "$python cannot make a virtual environment" "On Debian and Ubuntu: apt install python3-venv"
    fi
}

install_into_environment() {
    local log="$PWD/.venv/install.log"
    say "Installing swarm and what it needs into .venv: the first time 1 GB or more, and some minutes"
    if ! wait_for "$log" scripts/install .venv/bin/python --dev; then
        grep -v '^WARNING' "$log" | tail -n 15 >&2
        die "the installation failed; all it said is in $log" \
            "Check the network and the space on disk, and run this again."
    fi
}

ensure_environment() {
    local python stamp
    python="$(find_python)"
    stamp="$(wanted_stamp "$python")"
    environment_works || make_environment "$python"
    if [ "$(cat .venv/stamp 2>/dev/null)" != "$stamp" ]; then
        install_into_environment
        printf '%s\n' "$stamp" >.venv/stamp
        say "Ready after $SECONDS s"
    fi
}

ensure_environment
