#!/usr/bin/env bash
# Builds the fuzz targets with clang and libFuzzer and runs each: bash tests/fuzz/run.sh [--fast] RUNS [TARGET...]
#
# --fast: without the address sanitizer, with the checks of the standard library instead, several times as many runs a second;
# a run without it then begins with every input that was kept, so that those are tried under the address sanitizer too.
#
# Without targets all but manifest_image, which would be libhdf5's test. What libFuzzer adds to a corpus stays in
# build/fuzz/corpus, findings in build/fuzz/findings; a line of figures for each target. Status 77: no clang with libFuzzer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=build/fuzz options=()
if [ "${1:-}" = --fast ]; then
  build=build/fuzz-fast options=(-DSHARDWRIGHT_SANITIZE=fuzzer-no-link,undefined -DCMAKE_CXX_FLAGS=-D_GLIBCXX_ASSERTIONS)
  shift
fi
[[ "${1:-}" =~ ^[0-9]+$ ]] || { sed -n '2s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
runs=$1
shift
targets=("$@")
[ $# -gt 0 ] || targets=(chunk chunk_table commit config filter manifest_tables part texts)

if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
  clang++ -x c++ -fsanitize=fuzzer - -o /dev/null 2>/dev/null; then
  echo "run.sh: no clang++ with libFuzzer (Debian: clang)" >&2
  exit 77
fi
cmake --preset fuzz -B "$build" "${options[@]}" >/dev/null
cmake --build "$build" --target "${targets[@]/#/fuzz_}"

# Bounded memory is part of the test: an input that asks for more than this in one piece, or in all, is a finding.
limits=(-malloc_limit_mb=64 -rss_limit_mb=512 -timeout=10)
# Small quarantine and shallow stacks of allocations: several times as many runs a second, and all errors are still found.
export ASAN_OPTIONS=quarantine_size_mb=8:malloc_context_size=2
status=0
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target log=$build/$target.log
  mkdir -p "$corpus" build/fuzz/findings
  length=1024 leaks=1
  if [ "$target" = manifest_image ]; then length=65536 leaks=0; fi  # libhdf5 leaks where it refuses
  began=$SECONDS
  if ! "$build/bin/fuzz_$target" -runs="$runs" -max_len="$length" -detect_leaks=$leaks "${limits[@]}" -entropic=0 -reduce_inputs=0 \
    -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$target-" "$corpus" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    status=1
    grep -E 'ERROR|SUMMARY|^broken|runtime error|Test unit written' "$log" || tail -n 5 "$log"
    echo "$target: FOUND SOMETHING; see $log"
    continue
  fi
  figure() { sed -nE "s/^stat::$1: *//p" "$log"; }
  echo "$target: $(figure number_of_executed_units) runs in $((SECONDS - began)) s," \
    "$(sed -nE 's/^#[0-9]+\s+DONE +cov: ([0-9]+) ft: [0-9]+ corp: ([0-9]+).*/\1 edges, \2 inputs/p' "$log")," \
    "largest RSS $(figure peak_rss_mb) MB, nothing found"
done
exit $status
