#!/usr/bin/env bash
# Makes a container engine answer on this machine; with one that answers it changes nothing.
# Needs Debian packages and root, no systemd. Safe to repeat.
#
#   PYTHON      the interpreter that has sandboxed_mcp (default: .venv/bin/python)
#   ENGINE_LOG  where a started engine writes (default: /var/log/sandboxed-mcp-dockerd.log)
set -euo pipefail

python=${PYTHON:-.venv/bin/python}
log=${ENGINE_LOG:-/var/log/sandboxed-mcp-dockerd.log}
wait_seconds=90
no_engine=3 # exit status of --ping when no engine answers

say() { printf 'engine: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Whether an engine answers. Any other trouble ends this script with its own message: it must
# not be taken for a missing engine.
answers() {
    local said status=0
    said=$("$python" -m sandboxed_mcp.engine.images --ping 2>&1) || status=$?
    if ((status == 0)); then return 0; fi
    if ((status == no_engine)); then return 1; fi
    fail "cannot ask for the engine: $said"
}

refuse_if_named_elsewhere() {
    local name
    for name in DOCKER_HOST DOCKER_CONTEXT; do
        if [[ -n ${!name:-} ]]; then
            fail "$name is '${!name}' and nothing answers there; start that engine or unset $name"
        fi
    done
}

install_packages() {
    local packages=() output
    command -v dockerd >/dev/null || packages+=(docker.io)
    command -v iptables >/dev/null || packages+=(iptables)
    command -v mmdebstrap >/dev/null || packages+=(mmdebstrap debian-archive-keyring)
    if ((${#packages[@]} == 0)); then return; fi
    command -v apt-get >/dev/null ||
        fail "install ${packages[*]} first: this script knows apt-get only, and it is not here"
    say "installing ${packages[*]}"
    output=$(apt-get update -qq 2>&1 && apt_install "${packages[@]}" 2>&1) ||
        fail "apt-get failed: $output"
    # Newer releases of Debian keep the command line in a package of its own.
    command -v docker >/dev/null || output=$(apt_install docker-cli 2>&1) ||
        fail "apt-get failed: $output"
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null
}

# A pid file that outlived its process stops the engine from starting once the number is used
# by another process.
remove_stale_pid_file() {
    local file=$1 program=$2 pid
    if [[ ! -f $file ]]; then return; fi
    pid=$(<"$file")
    if [[ $(cat "/proc/$pid/comm" 2>/dev/null) != "$program" ]]; then rm -f "$file"; fi
}

start_engine() {
    if [[ -d /run/systemd/system ]]; then
        systemctl start docker
        return
    fi
    remove_stale_pid_file /run/docker.pid dockerd
    remove_stale_pid_file /run/docker/containerd/containerd.pid containerd
    grep -q ' cgroup' /proc/mounts || mount -t cgroup2 none /sys/fs/cgroup
    # Its own session: it outlives this shell and takes no signal meant for it.
    setsid --fork dockerd </dev/null >>"$log" 2>&1
}

wait_for_engine() {
    local deadline=$((SECONDS + wait_seconds))
    until answers; do
        if ((SECONDS >= deadline)); then
            fail "no answer within $wait_seconds s; the end of $log:"$'\n'"$(tail -n 20 "$log")"
        fi
        sleep 0.5
    done
}

main() {
    if answers; then return; fi
    refuse_if_named_elsewhere
    ((EUID == 0)) || fail "no engine answers, and only root can start one: run this as root," \
        "start Docker yourself or set DOCKER_HOST"
    install_packages
    if answers; then return; fi # the package may have started it
    say "starting dockerd, its log is $log"
    start_engine
    wait_for_engine
}

main
