#!/usr/bin/env bash
# The README's two commands as they are written there, for somebody who has never seen this project: a clone of the
# last commit, an ordinary user, an empty home, no Postgres on the PATH.
#
#   tests/fresh.sh            the first command, in full
#   tests/fresh.sh tests      the second too, which takes as long as the tests
#   tests/fresh.sh tests -k policy   …with arguments for pytest
#
# Started by root it runs as `nobody`. The exit status is that of the first command that failed.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
home=$(mktemp -d /tmp/fresh-XXXXXX)
trap 'rm -rf "$home"' EXIT
git -c safe.directory="$root" clone --quiet --no-hardlinks "file://$root" "$home/pgreferee"
as=()
if [ "$(id -u)" = 0 ]; then
  chown -R nobody: "$home"
  as=(setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups)
fi

# The two commands, read from the README itself.
mapfile -t commands < <(grep -E '^python3 -m pip install nox && python3 -m nox -s (stress|tests)$' "$root/README.md")
[ "${#commands[@]}" = 2 ] || { echo "the README has ${#commands[@]} commands, not 2" >&2; exit 2; }

# Everything of this user's own is left out: variables, caches, servers on the PATH. How this machine reaches packages
# is not: the settings of pip and the certificates.
keep=()
while read -r name; do keep+=("$name=${!name}"); done < <(compgen -e | grep -E '^(PIP|SSL_CERT|REQUESTS_CA)_' || true)
config=${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf
if [ -r "$config" ]; then
  install -D -m 644 "$config" "$home/.config/pip/pip.conf"
  [ "$(id -u)" != 0 ] || chown -R nobody: "$home/.config"
fi
# A Python that this user may run: the first on our own PATH may be in a home that is closed to others.
python=$(command -v python3)
"${as[@]}" "$python" -c "" 2>/dev/null || python=/usr/bin/python3

fresh() {
  (cd "$home/pgreferee" && "${as[@]}" env -i "${keep[@]}" \
    HOME="$home" PATH="$home/.venv/bin:/usr/local/bin:/usr/bin:/bin" LANG=C.UTF-8 \
    bash -c "$1" </dev/null)
}

# The README's answer to `externally-managed-environment`, which many systems give.
fresh "$python -m venv \"\$HOME/.venv\""
began=$SECONDS
fresh "${commands[0]}"
echo "fresh: '${commands[0]}' worked after $((SECONDS - began)) s" >&2
[ -n "$("${as[@]}" find "$home/pgreferee/results/runs" -name verdict.json -print -quit)" ]

if [ "${1:-}" = tests ]; then
  shift
  arguments=$(printf ' %q' "$@")
  began=$SECONDS
  fresh "${commands[1]}${1:+ --$arguments}"
  echo "fresh: '${commands[1]}' worked after $((SECONDS - began)) s" >&2
fi

# Nothing of it is left: no server, no folder of one.
if [ "$(id -u)" = 0 ]; then uid=$(id -u nobody); else uid=$(id -u); fi
left=$(find "/tmp/pgreferee-$uid" -mindepth 1 -maxdepth 1 -newer "$home/.venv/pyvenv.cfg" ! -name '*.lock' 2>/dev/null || true)
[ -z "$left" ] || { echo "fresh: left behind: $left" >&2; exit 1; }
