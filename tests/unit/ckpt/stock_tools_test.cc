// What people with h5py and h5dump get from our shards, through the plugin as it is installed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/tools/temp_dir.h"
#include "tests/tools/written_tensors.h"

namespace shardwright::ckpt {
namespace {

int shell(const std::string& command) {
  return std::system(fmt::format("HDF5_PLUGIN_PATH='{}' {}", SHARDWRIGHT_PLUGINS, command).c_str());
}

// Three writers, each with a piece of every tensor; the script knows nothing of the library.
TEST(StockTools, H5pyRebuildsEveryTensorFromAttributes) {
  const TempDir dir;
  const DType types[] = {DType::f32, DType::bf16, DType::f16,    DType::f64, DType::i8,
                         DType::u8,  DType::i16,  DType::u16,    DType::i32, DType::u32,
                         DType::i64, DType::u64,  DType::boolean};
  const Dims shapes[] = {{97, 5}, {131}, {3, 5, 7}, {0, 64}, {2}, {}};
  std::vector<SaveItem> items[3];
  std::ofstream list(dir / "list");
  int number = 0;
  for (const DType type : types)
    for (const Dims& shape : shapes) {
      const std::string tensor = fmt::format("t{}.weight", number++);
      for (std::uint64_t writer = 0; writer < 3; ++writer) {
        if (shape.empty() && writer != 1) continue;
        const Box box = shape.empty() ? Box{} : row_piece(shape, writer, 3);
        Dims chunk;
        for (const std::uint64_t extent : box.shape) chunk.push_back(extent / 2 + 1);
        items[writer].push_back(label_item(tensor, "param", type, shape, box, chunk, true));
      }
      const SaveItem whole = label_item(tensor, "param", type, shape, Box::whole(shape), {}, true);
      const std::vector<std::byte> values = expected_box(whole);
      std::ofstream(dir / tensor, std::ios::binary)
          .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size()));
      std::string extents;
      for (const std::uint64_t extent : shape) extents += fmt::format("{},", extent);
      list << fmt::format("param/{}\t{}\t{}\t{}\n", tensor, name(type), extents, tensor);
    }
  list.close();
  for (int writer = 0; writer < 3; ++writer)
    write_shard(posix_env(), dir.path(), "0-0", writer, 0, items[writer], {}, nullptr);
  ASSERT_EQ(shell(fmt::format("/usr/bin/python3 {}/read_with_h5py.py {} {}", SHARDWRIGHT_TOOLS, dir.path(),
                              dir / "out.npz")),
            0);
  EXPECT_EQ(shell(fmt::format("/usr/bin/python3 {}/compare_npz.py {} {}", SHARDWRIGHT_TOOLS, dir / "out.npz",
                              dir / "list")),
            0);
}

TEST(StockTools, H5dumpShowsNumbersAndH5repackRewrites) {
  const TempDir dir;
  const std::vector<SaveItem> items = {
      label_item("w", "param", DType::bf16, {7, 3}, Box::whole({7, 3}), {}, true)};
  write_shard(posix_env(), dir.path(), "0-0", 0, 0, items, {}, nullptr);
  const std::string shard = dir / shard_name(0);
  if (shell("which h5dump h5repack > /dev/null") != 0) GTEST_SKIP() << "hdf5-tools is not installed";
  ASSERT_EQ(shell(fmt::format("h5dump -d /param/w {} > {}", shard, dir / "dump")), 0);
  const std::string dump = read_file(posix_env(), dir / "dump");
  EXPECT_NE(dump.find("(0,0): 0.0"), std::string::npos) << dump;
  ASSERT_EQ(shell(fmt::format("h5repack {} {}", shard, dir / "again.h5")), 0);
  ASSERT_EQ(shell(fmt::format("h5dump -d /param/w {} > {}", dir / "again.h5", dir / "dump2")), 0);
  const auto data = [](const std::string& text) { return text.substr(text.find("DATA")); };
  EXPECT_EQ(data(read_file(posix_env(), dir / "dump2")), data(dump));
}

}  // namespace
}  // namespace shardwright::ckpt
