#!/usr/bin/env bash
# A container engine for tests, apart from the machine's own: `engine.sh start FOLDER`, `engine.sh stop FOLDER`.
# It needs root, and neither a service manager nor a network: containers have none. Its socket is FOLDER/socket.
set -euo pipefail
usage="usage: engine.sh start|stop FOLDER (an absolute path of at most 80 characters)"
folder="${2:?$usage}"
group=/quintain-tests

start() {
    mkdir -p "$folder"
    # Of an engine that was killed here before: a process that nobody waited for would pass for a running one.
    for file in "$folder/pid" "$folder/exec/containerd/containerd.pid"; do
        if [ -f "$file" ]; then
            kill -KILL "$(cat "$file")" 2> /dev/null || true
            rm "$file"
        fi
    done
    # Without --ip-forward=false the engine would switch forwarding on for the whole machine.
    setsid dockerd --host="unix://$folder/socket" --data-root="$folder/data" --exec-root="$folder/exec" \
        --pidfile="$folder/pid" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none \
        --cgroup-parent="$group" --exec-opt native.cgroupdriver=cgroupfs "${@:3}" \
        > "$folder/log" 2>&1 < /dev/null &
    local engine=$!
    for _ in $(seq 300); do
        if grep -qs 'API listen on' "$folder/log"; then
            return 0
        fi
        kill -0 "$engine" 2> /dev/null || break
        sleep 0.2
    done
    echo "the container engine did not start:" >&2
    tail -n 5 "$folder/log" >&2
    stop
    return 1
}

stop() {
    local pid
    if pid="$(cat "$folder/pid" 2> /dev/null)"; then
        kill "$pid" 2> /dev/null || true
        for _ in $(seq 100); do
            kill -0 "$pid" 2> /dev/null || break
            sleep 0.2
        done
    fi
    # What is left after the engine was killed: itself, containerd and its helpers, all of which name the folder.
    for pid in $(pgrep -f -- "$folder/" || true); do
        [ "$pid" = $$ ] || kill -KILL "$pid" 2> /dev/null || true
    done
    awk -v folder="$folder/" 'index($2, folder) == 1 { print $2 }' /proc/self/mounts | sort -r | while read -r mount; do
        umount --lazy "$mount" 2> /dev/null || true
    done
    find /sys/fs/cgroup"$group" /sys/fs/cgroup/*"$group" -depth -type d -exec rmdir {} \; 2> /dev/null || true
    rm -rf "$folder"
}

case "${1:-}" in
    start) start "$@" ;;
    stop) stop ;;
    *) echo "$usage" >&2; exit 2 ;;
esac
