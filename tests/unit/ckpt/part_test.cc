// What a part or a chunk table says that cannot be so.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/rest_digest.h"
#include "ckpt/shard.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/written_tensors.h"

namespace shardwright::ckpt {
namespace {

template <typename Call>
void expect_damage(Call call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::damaged) << error.what();
  }
}

TEST(Part, ACountOtherThanTheBoxsIsDamage) {
  const TempDir dir;
  const std::vector<SaveItem> items{label_item("a", "param", DType::f32, {9, 5}, Box::whole({9, 5}))};
  Part part = write_shard(posix_env(), dir.path(), "0-1", 1, 7, items, {}, nullptr);
  ++part.boxes[0].fingerprint.count;
  publish_part(posix_env(), dir.path(), part);
  expect_damage([&] { read_part(posix_env(), dir / part_name(1)); });
}

TEST(ChunkTable, AChunkOfAnImpossibleSizeIsDamage) {
  for (const std::uint32_t stored : {2u << 20, (2u << 20) + 1}) {
    const std::vector<ChunkRow> rows = {{0, stored, 4, 0}};
    const auto parse = [&] { parse_table(table_bytes(rows), 1ull << 40, "shard"); };
    if (stored == 2u << 20) {
      EXPECT_NO_THROW(parse());
    } else {
      expect_damage(parse);
    }
  }
}

}  // namespace
}  // namespace shardwright::ckpt
