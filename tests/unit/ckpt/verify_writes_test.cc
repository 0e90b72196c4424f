// A compressor that makes a valid frame of other values, as faulty memory or a faulty processor may: it
// stands before libzstd's own in this program.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/shard.h"
#include "tests/tools/temp_dir.h"

namespace {
std::atomic<bool> faulty{false};
}  // namespace

extern "C" std::size_t ZSTD_compress2(ZSTD_CCtx* context, void* to, std::size_t capacity, const void* from,
                                      std::size_t bytes) {
  static const auto real = reinterpret_cast<decltype(&ZSTD_compress2)>(::dlsym(RTLD_NEXT, "ZSTD_compress2"));
  if (!faulty || bytes == 0) return real(context, to, capacity, from, bytes);
  std::vector<char> changed(bytes);
  std::memcpy(changed.data(), from, bytes);
  changed[bytes / 2] = static_cast<char>(changed[bytes / 2] ^ 1);
  return real(context, to, capacity, changed.data(), bytes);
}

namespace shardwright::ckpt {
namespace {

TEST(VerifyWrites, AWorkerThatCorruptsAChunkIsCaughtBeforeItIsWritten) {
  const Dims shape{7, 301};
  const std::vector<std::uint8_t> values(7 * 301, 42);
  const SaveItem item{"noise",
                      "param",
                      DType::u8,
                      shape,
                      Box::whole(shape),
                      {2, 301},
                      std::make_shared<HostSource>(values.data(), Box::whole(shape), 1)};
  ShardOptions options;
  options.codec = Codec::small;
  const auto write = [&] {
    const TempDir dir;
    write_shard(posix_env(), dir.path(), "0-1", 0, 7, std::vector{item}, options, nullptr);
  };
  faulty = true;
  write();  // nobody looks
  options.verify_writes = true;
  try {
    write();
    ADD_FAILURE() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::damaged);
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("tensor 'noise' kind 'param': chunk 0 decodes to other values"));
  }
  faulty = false;
  write();
}

}  // namespace
}  // namespace shardwright::ckpt
