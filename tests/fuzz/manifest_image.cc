// Bytes taken for a manifest: libhdf5, then what FORMAT.md says of tables. libhdf5 was not written for bytes
// that nobody vouches for; what keeps such bytes from it is the digest in COMMIT. So this target is for our
// side of it, and for looking.
#include <string>

#include "ckpt/error.h"
#include "ckpt/manifest.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/same_manifest.h"

using namespace shardwright;
using fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  try {
    const ckpt::Manifest m = ckpt::parse_manifest(input.rest(), "manifest.h5");
    if (!ckpt::check(m).empty()) return 0;
    const auto again = fuzz::must("what was read can be written and read", [&] {
      return ckpt::parse_manifest(ckpt::encode_manifest(m), "manifest.h5");
    });
    require(fuzz::same(again, m), "what is written is read as it was");
  } catch (const Error& e) {
    require(
        e.code() == ErrorCode::damaged || e.code() == ErrorCode::future_version || e.code() == ErrorCode::io,
        "what is refused is called damaged, or of a future version");
  }
  return 0;
}
