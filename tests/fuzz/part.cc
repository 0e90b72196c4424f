// Part records, as bytes or as JSON under a right digest, and the joining of those that can be read. A part
// is read back as it is written, and what parts join to keeps every rule of a manifest.
#include <algorithm>
#include <string>
#include <vector>

#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "ckpt/manifest.h"
#include "ckpt/replicas.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/memory_env.h"
#include "tests/fuzz/same_manifest.h"

namespace {

using namespace shardwright;
using namespace shardwright::ckpt;
using fuzz::require;

constexpr std::size_t kMaxParts = 8;

bool same(const BoxRecord& a, const BoxRecord& b) {
  return a.tensor == b.tensor && a.kind == b.kind && a.dtype == b.dtype && a.global_shape == b.global_shape &&
         a.box == b.box && a.chunk == b.chunk && a.dataset == b.dataset && a.first_chunk == b.first_chunk &&
         a.chunks == b.chunks && a.fingerprint == b.fingerprint;
}

bool same(const ReplicaRecord& a, const ReplicaRecord& b) {
  return a.tensor == b.tensor && a.kind == b.kind && a.box == b.box && a.fingerprint == b.fingerprint;
}

bool same(const Part& a, const Part& b) {
  return a.attempt == b.attempt && a.rank == b.rank && a.step == b.step && a.error == b.error &&
         a.has_file == b.has_file && fuzz::same(a.file, b.file) &&
         std::ranges::equal(a.boxes, b.boxes,
                            [](const BoxRecord& x, const BoxRecord& y) { return same(x, y); }) &&
         std::ranges::equal(a.replicas, b.replicas,
                            [](const ReplicaRecord& x, const ReplicaRecord& y) { return same(x, y); });
}

Part read(const std::string& record) {
  fuzz::MemoryEnv env;
  env.put("attempt/part", record);
  const Part part = read_part(env, "attempt/part");
  const Part again = fuzz::must("a part that was read can be written and read", [&] {
    publish_part(env, "attempt", part);
    return read_part(env, "attempt/" + part_name(part.rank));
  });
  require(same(again, part), "a part is read as it was written");
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const bool is_signed = input.byte() & 1;
  std::vector<Part> parts;
  try {
    if (is_signed)
      while (!input.empty() && parts.size() < kMaxParts)
        parts.push_back(read(sign_record(input.until('\n'))));
    else
      parts.push_back(read(input.rest_text()));
  } catch (const Error& e) {
    require(e.code() == ErrorCode::damaged, "what is refused is called damaged");
    return 0;
  }
  try {
    compare_replicas(parts);
  } catch (const Error& e) {
    require(e.code() == ErrorCode::usage || e.code() == ErrorCode::damaged,
            "copies that differ are called damaged, others asked for wrongly");
  }
  try {
    require(check(assemble(parts, {})).empty(), "what parts join to keeps every rule");
  } catch (const Error& e) {
    require(e.code() == ErrorCode::usage || e.code() == ErrorCode::peer,
            "parts that do not join are called asked for wrongly, or failed");
  }
  return 0;
}
