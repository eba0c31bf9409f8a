#!/bin/sh
# Starts `spinf serve` on a free port of this machine, asks it the questions of support.json, and stops it.
# Usage: examples/serve_demo.sh [path of spinf]
set -eu
spinf=${1:-spinf}
command -v curl >/dev/null || { echo "curl is not installed, so the server is not shown"; exit 0; }
log=$(mktemp)
"$spinf" serve --port 0 --warmup none 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" || true; rm -f "$log"' EXIT

until grep -qx ready "$log"; do
    kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.2
done
url=$(sed -n 's/^listening on \(http:[^ ]*\).*/\1/p' "$log")
echo "\$ curl -s $url/v1/score -d @examples/support.json"
answer=$(curl -sS --fail "$url/v1/score" -d "@$(dirname "$0")/support.json")
printf '%.500s…\n' "$answer"
