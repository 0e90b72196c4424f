// COMMIT and GENERATION, as bytes or as JSON under a right digest. What is accepted keeps to its bounds and
// is read back as it is written.
#include "ckpt/commit.h"

#include <string>

#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "ckpt/run_dir.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_env.h"

namespace {

using namespace shardwright;
using namespace shardwright::ckpt;
using fuzz::require;

bool same(const Commit& a, const Commit& b) {
  return a.version == b.version && a.run == b.run && a.generation == b.generation && a.attempt == b.attempt &&
         a.step == b.step && a.manifest.name == b.manifest.name && a.manifest.bytes == b.manifest.bytes &&
         a.manifest.xxh3_128 == b.manifest.xxh3_128;
}

void check_bounds(const std::string& run, std::uint64_t generation) {
  require(run.size() <= 256, "the name of a run is short");
  require(generation < (1ull << 53), "a generation fits a double");
}

void check_commit(fuzz::MemoryEnv& env) {
  const Commit commit = read_commit(env, "ckpt");
  require(commit.version == kFormatVersion, "only this version is accepted");
  require(commit.manifest.name == "manifest.h5", "the manifest's name leads nowhere else");
  check_bounds(commit.run, commit.generation);
  const Commit again = fuzz::must("a COMMIT that was read can be written and read", [&] {
    write_commit(env, "ckpt", commit, [] { return true; });
    return read_commit(env, "ckpt");
  });
  require(same(again, commit), "a COMMIT is read as it was written");
}

void check_generation(fuzz::MemoryEnv& env) {
  const Generation generation = read_generation(env, "run");
  check_bounds(generation.run, generation.number);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint8_t mode = input.byte();
  const std::string text = input.rest_text();
  fuzz::MemoryEnv env;
  const bool generation = mode & 1, is_signed = mode & 2;
  env.put(generation ? "run/GENERATION" : "ckpt/COMMIT", is_signed ? sign_record(text) : text);
  try {
    generation ? check_generation(env) : check_commit(env);
  } catch (const Error& e) {
    require(e.code() == ErrorCode::damaged ||
                (!generation && (e.code() == ErrorCode::incomplete || e.code() == ErrorCode::future_version)),
            "what is refused is called damaged, incomplete or of a future version");
  }
  return 0;
}
