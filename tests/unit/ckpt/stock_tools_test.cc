// What people with h5py and h5dump get from our shards, through the plugin as it is installed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "ckpt/commit.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/written_tensors.h"

namespace shardwright::ckpt {
namespace {

int shell(const std::string& command, const std::string& plugins = SHARDWRIGHT_PLUGINS) {
  return std::system(fmt::format("HDF5_PLUGIN_PATH='{}' {}", plugins, command).c_str());
}

const std::string kNoPlugins = "/nowhere";  // in place of a folder that the system may have

/// The command that runs Python; tests with another h5py say theirs.
std::string python() {
  const char* given = std::getenv("SHARDWRIGHT_STOCK_PYTHON");
  return given != nullptr ? given : "/usr/bin/python3";
}

constexpr int kWriters = 3;

/// Items of three writers, each with a piece of a tensor of every type in every shape. `dir`/list names the
/// files with their values, for compare_npz.py; `bf16` is the type in which the reader shows bf16.
std::vector<std::vector<SaveItem>> every_type(const TempDir& dir, std::string_view bf16) {
  const DType types[] = {DType::f32, DType::bf16, DType::f16,    DType::f64, DType::i8,
                         DType::u8,  DType::i16,  DType::u16,    DType::i32, DType::u32,
                         DType::i64, DType::u64,  DType::boolean};
  const Dims shapes[] = {{97, 5}, {131}, {3, 5, 7}, {0, 64}, {2}, {}};
  std::vector<std::vector<SaveItem>> items(kWriters);
  std::ofstream list(dir / "list");
  int number = 0;
  for (const DType type : types)
    for (const Dims& shape : shapes) {
      const std::string tensor = fmt::format("t{}.weight", number++);
      for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
        if (shape.empty() && writer != 1) continue;
        const Box box = shape.empty() ? Box{} : row_piece(shape, writer, kWriters);
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
      list << fmt::format("param/{}\t{}\t{}\t{}\n", tensor, type == DType::bf16 ? bf16 : name(type), extents,
                          tensor);
    }
  return items;
}

/// What `reader` (a script of tests/tools) makes of a directory is what every_type() listed.
void expect_read(const std::string& reader, const std::string& checkpoint, const TempDir& dir,
                 const std::string& plugins = SHARDWRIGHT_PLUGINS) {
  ASSERT_EQ(shell(fmt::format("{} {}/{} {} {} > {}", python(), SHARDWRIGHT_TOOLS, reader, checkpoint,
                              dir / "out.npz", dir / "said"),
                  plugins),
            0);
  EXPECT_EQ(shell(fmt::format("{} {}/compare_npz.py {} {}", python(), SHARDWRIGHT_TOOLS, dir / "out.npz",
                              dir / "list")),
            0);
}

// The script knows nothing of the library.
TEST(StockTools, H5pyRebuildsEveryTensorFromAttributes) {
  const TempDir dir;
  const auto items = every_type(dir, "bf16");
  for (int writer = 0; writer < kWriters; ++writer)
    write_shard(posix_env(), dir.path(), "0-0", writer, 0, items[static_cast<std::size_t>(writer)], {},
                nullptr);
  expect_read("read_with_h5py.py", dir.path(), dir);
}

TEST(StockTools, DeflatedShardsNeedNoPlugin) {
  const TempDir dir;
  const auto items = every_type(dir, "bf16");
  ShardOptions options;
  options.codec = Codec::deflate;
  options.verify_writes = true;
  for (int writer = 0; writer < kWriters; ++writer)
    write_shard(posix_env(), dir.path(), "0-0", writer, 0, items[static_cast<std::size_t>(writer)], options,
                nullptr);
  expect_read("read_with_h5py.py", dir.path(), dir, kNoPlugins);
  const std::string shard = dir / shard_name(0);
  ASSERT_EQ(shell(fmt::format("h5dump -p -d /param/t0.weight {} > {}", shard, dir / "dump"), kNoPlugins), 0);
  const std::string dump = read_file(posix_env(), dir / "dump");
  const std::size_t shuffle = dump.find("PREPROCESSING SHUFFLE"),
                    deflate = dump.find("COMPRESSION DEFLATE { LEVEL 1 }"),
                    sum = dump.find("CHECKSUM FLETCHER32");
  EXPECT_LT(shuffle, deflate) << dump;
  EXPECT_LT(deflate, sum) << dump;
  EXPECT_NE(sum, std::string::npos) << dump;
  // The others do need one, so this test can fail.
  write_shard(posix_env(), dir.path(), "0-0", 7, 0, items[0], {}, nullptr);
  EXPECT_NE(shell(fmt::format("h5dump -d /param/t0.weight {} > {} 2>&1", dir / shard_name(7), dir / "dump"),
                  kNoPlugins),
            0);
}

// A reader of the whole format, which takes nothing from the shards but chunks.
void second_reader_reads(Codec codec) {
  const TempDir dir;
  const auto items = every_type(dir, "u16");
  CommitJob job;
  job.final_dir = dir / step_dir_name(5);
  job.attempt_dir = job.final_dir + ".tmp-0-1";
  job.commit.run = "11111111-2222-4333-8444-555555555555";
  job.commit.attempt = "0-1";
  job.commit.step = 5;
  job.description = {"{}", "{}", "{}", "{}"};
  job.writers = kWriters;
  ShardOptions options;
  options.codec = codec;
  posix_env().create_dirs(job.attempt_dir);
  for (int writer = 0; writer < kWriters; ++writer)
    publish_part(posix_env(), job.attempt_dir,
                 write_shard(posix_env(), job.attempt_dir, job.commit.attempt, writer, job.commit.step,
                             items[static_cast<std::size_t>(writer)], options, nullptr));
  commit_attempt(posix_env(), job);
  expect_read("second_reader.py", job.final_dir, dir);
}

TEST(StockTools, SecondReaderReadsEveryTypeAndShape) { second_reader_reads(Codec::fast); }
TEST(StockTools, SecondReaderReadsDeflate) { second_reader_reads(Codec::deflate); }

TEST(StockTools, H5dumpShowsNumbersAndH5repackRewrites) {
  const TempDir dir;
  const std::vector<SaveItem> items = {
      label_item("w", "param", DType::bf16, {7, 3}, Box::whole({7, 3}), {}, true)};
  write_shard(posix_env(), dir.path(), "0-0", 0, 0, items, {}, nullptr);
  const std::string shard = dir / shard_name(0);
  ASSERT_EQ(shell("which h5dump h5repack > /dev/null"), 0)
      << "hdf5-tools is not installed; cli/install_deps.sh installs it";
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
