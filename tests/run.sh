#!/usr/bin/env bash
# Builds and runs the tests: bash tests/run.sh [--long] [arguments of ctest, such as -R B07]
#
# Without arguments: all tests but those labelled `long` in the release build, then the unit and property tests again with
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

total=0 failed=0 summary=
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
  # A ctest that failed without failing tests found none, or could not run.
  if [ "$status" -ne 0 ] && [ "$some_failed" -eq 0 ]; then some_failed=1 all=$((all + 1)); fi
  summary+=$(printf '%-8s %4d passed, %d failed' "$name" $((all - some_failed)) "$some_failed")$'\n'
  total=$((total + all)) failed=$((failed + some_failed))
}

cmake --preset release
cmake --build --preset release
# Two at a time: tests that measure time or need the machine to themselves are marked serial.
run_ctest release build/release -j 2 "${selection[@]}" "$@"

if [ $# -eq 0 ]; then
  cmake --preset asan
  cmake --build --preset asan --target unit_tests
  run_ctest asan build/asan -j 2 -L 'unit|property' -LE long
fi

printf '\n%s%d passed, %d failed\n' "$summary" $((total - failed)) "$failed"
[ "$failed" -eq 0 ]
