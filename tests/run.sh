#!/usr/bin/env bash
# Builds and runs the tests: bash tests/run.sh [--long] [arguments of ctest, such as -R B07]
#
# Without arguments: all tests but those labelled `long` in the release build, then the unit, property and fuzz tests again with
# the address and undefined-behaviour sanitizers. --long: the long ones too. With arguments of ctest: the release build only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

selection=(-LE long)
if [ "${1:-}" = --long ]; then
  selection=()
  shift
fi

bash cli/install_deps.sh
if command -v ccache >/dev/null; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
fi

total=0 failed=0 summary='' names='' words=''
# count <name> <all> <failed>: a line of the summary.
count() {
  summary+=$(printf '%-8s %4d passed, %d failed' "$1" $(($2 - $3)) "$3")$'\n'
  total=$((total + $2)) failed=$((failed + $3))
}

# build <name of the preset> <arguments...>: a build that fails counts as a failed test.
build() {
  local name=$1
  shift
  if cmake --preset "$name" && cmake --build --preset "$name" "$@"; then return 0; fi
  names+="failed in $name: the build"$'\n'
  count "$name" 1 1
  return 1
}

# last_words <log of ctest>: the ends of what the failed tests printed.
last_words() {
  awk '
    function close_test() { for (i = lines > 30 ? lines - 30 : 0; i < lines; ++i) print text[i]; lines = 0 }
    /^ *Start +[0-9]+: / || /^ *[0-9]+\/[0-9]+ Test +#/ || /% tests passed, / { close_test(); inside = 0 }
    /^ *[0-9]+\/[0-9]+ Test +#.*\*\*\*/ && !/\*\*\*Skipped/ { inside = 1 }
    inside { text[lines++] = substr($0, 1, 400) }
    END { close_test() }' "$1"
}

# run_ctest <name> <build directory> <arguments...>: runs the tests and adds to the summary.
run_ctest() {
  local name=$1 directory=$2 log=$2/tests.log status=0 line
  shift 2
  ctest --test-dir "$directory" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log" || status=$?
  line=$(grep -E 'tests? passed, [0-9]+ tests? failed out of [0-9]+' "$log" | tail -n 1 || true)
  local some_failed=0 all=0
  if [ -n "$line" ]; then
    some_failed=$(sed -E 's/.* ([0-9]+) tests? failed out of ([0-9]+).*/\1/' <<<"$line")
    all=$(sed -E 's/.* ([0-9]+) tests? failed out of ([0-9]+).*/\2/' <<<"$line")
  fi
  if [ "$some_failed" -gt 0 ]; then
    # ctest lists them at its end, as "  7 - Name (Timeout)".
    names+=$(sed -nE '/^The following tests FAILED:/,$ s/^[[:space:]]*[0-9]+ - (.*\)).*$/failed in '"$name"': \1/p' "$log")$'\n'
    words+=$(last_words "$log")$'\n'
  elif [ "$status" -ne 0 ]; then
    # A ctest that failed without failing tests found none, or could not run.
    names+="failed in $name: ctest itself, with status $status"$'\n'
    some_failed=1 all=$((all + 1))
  fi
  count "$name" "$all" "$some_failed"
}

# Two at a time: tests that measure time or need the machine to themselves are marked serial.
if build release; then
  run_ctest release build/release -j 2 "${selection[@]}" "$@"
  if [ $# -eq 0 ] && build asan --target unit_tests; then
    run_ctest asan build/asan -j 2 -L 'unit|property|fuzz' -LE long
  fi
fi

# What failed comes last, so that it is still there in a log of which only the end is kept.
printf '%s\n%s%d passed, %d failed\n%s' "$words" "$summary" $((total - failed)) "$failed" "$names"
[ "$failed" -eq 0 ]
