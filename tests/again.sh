# Sourced by what fetches something over the network.

# again WHAT COMMAND...: up to four times, with longer and longer rests: whoever answers slowly or not
# at all is asked again. COMMAND has a bound of its own.
again() {
  local what=$1 turn
  shift
  for turn in 1 2 3 4; do
    "$@" && return
    [ "$turn" -lt 4 ] || break
    echo "$what: could not be fetched; once more in $((turn * 10)) s" >&2
    sleep $((turn * 10))
  done
  echo "$what: could not be fetched in four attempts; is the network, or its registry, there?" >&2
  return 1
}
