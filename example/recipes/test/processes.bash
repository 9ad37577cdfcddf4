# SPDX-License-Identifier: BSL-1.0
# Sourced by the tests of programs that talk to each other. Each process has a name and pipes.
built=$1
folder=$(mktemp -d)
declare -A in=() out=() pid=()

clean_up() {
  local p
  for p in "${pid[@]}"; do
    kill -9 "$p" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap clean_up EXIT

bad() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  tail -n +1 "$folder"/*.err >&2
  exit 1
}

# start NAME COMMAND…: its input is descriptor ${in[NAME]}, its output ${out[NAME]}.
start() {
  local name=$1 fd
  shift
  mkfifo "$folder/$name.in" "$folder/$name.out"
  (
    for fd in "${in[@]}" "${out[@]}"; do # a copy would keep the pipe of another process open
      exec {fd}>&-
    done
    exec "$@"
  ) <"$folder/$name.in" >"$folder/$name.out" 2>"$folder/$name.err" &
  pid[$name]=$!
  exec {fd}>"$folder/$name.in"
  in[$name]=$fd
  exec {fd}<"$folder/$name.out"
  out[$name]=$fd
}

# says NAME: the next line of its output.
says() {
  local line
  read -r -t 60 -u "${out[$1]}" line || bad "$1 said nothing more"
  printf '%s\n' "$line"
}
# expect NAME LINE
expect() {
  local line
  line=$(says "$1") || exit 1
  printf '%s: %s\n' "$1" "$line"
  [ "$line" = "$2" ] || bad "$1 should have said: $2"
}
# tell NAME LINE: writes to its input.
tell() { printf '%s\n' "$2" >&"${in[$1]}"; }
# end_input NAME
end_input() {
  local fd=${in[$1]}
  unset "in[$1]"
  exec {fd}>&-
}
# ends NAME STATUS: waits for its end.
ends() {
  local status=0
  wait "${pid[$1]}" || status=$?
  unset "pid[$1]"
  [ $status = "$2" ] || bad "$1 ended with status $status"
}
