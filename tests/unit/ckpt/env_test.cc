#include "ckpt/env.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "ckpt/digest.h"
#include "ckpt/error.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

template <typename Call>
ErrorCode code_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::given_up;
}

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

TEST(Env, WritesReadsAndRenames) {
  const TempDir dir;
  Env& env = posix_env();
  {
    const auto file = env.create(dir / "a");
    file->write(3, bytes("defg"));
    file->write(0, bytes("abc"));
    std::string back(9, '?');
    file->read(0, std::as_writable_bytes(std::span(back)));
    EXPECT_EQ(back, std::string("abcdefg\0\0", 9));
    file->truncate(5);
    EXPECT_EQ(file->size(), 5u);
    file->sync();
  }
  EXPECT_EQ(read_file(env, dir / "a"), "abcde");
  EXPECT_EQ(code_of([&] { env.create_new(dir / "a"); }), ErrorCode::exists);
  EXPECT_EQ(read_file(env, dir / "a"), "abcde");
  env.create_new(dir / "new")->write(0, bytes("abc"));
  EXPECT_EQ(read_file(env, dir / "new"), "abc");
  env.unlink(dir / "new");
  env.rename(dir / "a", dir / "b");
  EXPECT_EQ(env.list(dir.path()), std::vector<std::string>{"b"});
  EXPECT_GT(env.modified(dir / "b"), 1e9);
  env.unlink(dir / "b");
  env.unlink(dir / "b");
  EXPECT_FALSE(env.exists(dir / "b"));
}

TEST(Env, ErrorsNameThePath) {
  const TempDir dir;
  Env& env = posix_env();
  EXPECT_EQ(code_of([&] { env.open(dir / "none"); }), ErrorCode::missing);
  EXPECT_EQ(code_of([&] { env.list(dir / "none"); }), ErrorCode::missing);
  EXPECT_EQ(code_of([&] { env.open(dir.path()); }), ErrorCode::io);  // a directory is not a file
  EXPECT_EQ(code_of([&] { env.create(dir.path()); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { env.create_new(dir.path()); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { env.create_new(dir / "none/a"); }), ErrorCode::missing);
  try {
    env.open(dir / "none");
  } catch (const Error& error) {
    EXPECT_EQ(error.path(), dir / "none");
    EXPECT_NE(std::string(error.what()).find(dir / "none"), std::string::npos);
  }
  replace_file(env, dir / "short", "abc");
  const auto file = env.open(dir / "short");
  std::byte four[4];
  EXPECT_EQ(code_of([&] { file->read(0, four); }), ErrorCode::damaged);
  EXPECT_EQ(code_of([&] { read_file(env, dir / "short", 2); }), ErrorCode::damaged);
  // A FIFO in a file's place is an error at once, never a wait.
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(code_of([&] { env.open(dir / "fifo"); }), ErrorCode::io);
}

TEST(Env, FullDiskQuotaAndSizeLimitAreNoSpace) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG})
    EXPECT_EQ(code_of([&] { throw_errno(error, "cannot be written", "f"); }), ErrorCode::no_space);
  // The real thing: beyond RLIMIT_FSIZE the process must get an error and not a signal.
  const TempDir dir;
  Env& env = posix_env();
  const auto file = env.create(dir / "limited");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 5;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const ErrorCode code = code_of([&] { file->write(0, bytes("0123456789")); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(code, ErrorCode::no_space);
}

TEST(Env, B95_CreatesOnlyMissingDirectories) {
  const TempDir dir;
  TraceEnv env;
  posix_env().create_dirs(dir / "x/y/z");
  posix_env().create_dirs(dir / "x/y/z");
  EXPECT_TRUE(env.is_dir(dir / "x/y/z"));
  replace_file(env, dir / "x/file", "");
  EXPECT_EQ(code_of([&] { posix_env().create_dirs(dir / "x/file"); }), ErrorCode::io);
  EXPECT_EQ(code_of([&] { posix_env().create_dirs(dir / "x/file/below"); }), ErrorCode::io);
}

TEST(Env, RemovalKeepsWhatALinkLeadsTo) {
  const TempDir dir;
  Env& env = posix_env();
  env.create_dirs(dir / "kept/inner");
  replace_file(env, dir / "kept/COMMIT", "");
  replace_file(env, dir / "kept/inner/file", "");
  env.create_dirs(dir / "checkpoint/inner");
  replace_file(env, dir / "checkpoint/inner/file", "");
  std::filesystem::create_symlink(dir / "kept/inner", dir / "checkpoint/linked");
  std::filesystem::create_symlink(dir / "kept", dir / "link");
  std::filesystem::create_symlink(dir / "nowhere", dir / "dangling");
  replace_file(env, dir / "plain", "");
  for (const char* name : {"checkpoint", "link", "dangling", "plain", "missing"}) {
    remove_checkpoint_dir(env, dir / name);
    EXPECT_FALSE(env.exists(dir / name) || std::filesystem::is_symlink(dir / name)) << name;
  }
  EXPECT_TRUE(env.exists(dir / "kept/COMMIT"));
  EXPECT_TRUE(env.exists(dir / "kept/inner/file"));
}

TEST(Env, NoFileIsReachedThroughALinkOfItsName) {
  const TempDir dir;
  Env& env = posix_env();
  env.create_dirs(dir / "kept");
  replace_file(env, dir / "kept/file", "whole");
  std::filesystem::create_symlink("kept/file", dir / "link");
  std::filesystem::create_symlink("kept/new", dir / "dangling");
  std::filesystem::create_directory_symlink("kept", dir / "directory");
  for (const char* name : {"link", "dangling"}) {
    EXPECT_EQ(code_of([&] { env.open(dir / name); }), ErrorCode::io) << name;
    EXPECT_EQ(code_of([&] { env.create(dir / name); }), ErrorCode::io) << name;
  }
  EXPECT_EQ(env.list(dir / "kept"), std::vector<std::string>{"file"});
  EXPECT_EQ(read_file(env, dir / "directory/file"), "whole");  // on the way to a file links are followed
}

TEST(Env, LockIsHeldOnceAndReleased) {
  const TempDir dir;
  Env& env = posix_env();
  {
    const auto held = env.lock(dir / "run.lock");
    EXPECT_EQ(code_of([&] { env.lock(dir / "run.lock"); }), ErrorCode::busy);
  }
  EXPECT_NE(env.lock(dir / "run.lock"), nullptr);
}

TEST(Env, ReplaceFileSyncsBeforeItRenames) {
  const TempDir dir;
  TraceEnv env;
  replace_file(env, dir / "f", "one");
  const std::vector<TraceOp> ops = env.ops();
  std::vector<TraceOp::Kind> kinds;
  for (const TraceOp& op : ops) kinds.push_back(op.kind);
  EXPECT_EQ(kinds, (std::vector<TraceOp::Kind>{TraceOp::create, TraceOp::write, TraceOp::sync,
                                               TraceOp::rename, TraceOp::sync_dir}));
  // Whatever fails, the old contents stay or the new ones are whole.
  for (std::size_t n = 0; n < ops.size(); ++n) {
    TraceEnv failing;
    failing.fail_at(n, EIO);
    EXPECT_EQ(code_of([&] { replace_file(failing, dir / "f", "two"); }), ErrorCode::io);
    EXPECT_EQ(read_file(env, dir / "f"), n < 4 ? "one" : "two");
    EXPECT_EQ(env.list(dir.path()), std::vector<std::string>{"f"}) << "what was not finished is left";
  }
}

TEST(Env, RemovesACheckpointDirectory) {
  const TempDir dir;
  TraceEnv env;
  env.create_dirs(dir / "step/inner");
  for (const char* file : {"/COMMIT", "/a.h5", "/inner/b"}) replace_file(env, dir / "step" + file, "x");
  env.clear();
  remove_checkpoint_dir(env, dir / "step");
  EXPECT_FALSE(env.exists(dir / "step"));
  EXPECT_EQ(env.ops().front().path, dir / "step/COMMIT");
  remove_checkpoint_dir(env, dir / "step");
}

TEST(Record, SignsAndRefusesEveryChangedByte) {
  const std::string record = sign_record(R"({"format":"shardwright"})");
  EXPECT_EQ(open_record(record, "COMMIT"), R"({"format":"shardwright"})");
  for (std::size_t i = 0; i < record.size(); ++i) {
    std::string changed = record;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_EQ(code_of([&] { open_record(changed, "COMMIT"); }), ErrorCode::damaged) << i;
    EXPECT_EQ(code_of([&] { open_record(record.substr(0, i), "COMMIT"); }), ErrorCode::damaged) << i;
  }
  EXPECT_EQ(code_of([&] { open_record(record + "\n", "COMMIT"); }), ErrorCode::damaged);
}

TEST(Digest, KnownVectorsAndStreaming) {
  // XXH3 of the empty input and of "abc", from the reference implementation's published vectors (xxhsum -H2,
  // -H3).
  EXPECT_EQ(xxh3_64({}), 0x2d06800538d394c2ull);
  EXPECT_EQ(to_hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
  StreamDigest stream;
  stream.update(bytes("ab"));
  stream.update(bytes("c"));
  EXPECT_EQ(stream.finish(), xxh3_128(bytes("abc")));
  EXPECT_EQ(parse_digest(to_hex(xxh3_128(bytes("abc")))), xxh3_128(bytes("abc")));
  for (const std::string bad : {"", "99AA06d3014798d86001c324468d497f", "99aa06d3014798d86001c324468d497"})
    EXPECT_EQ(code_of([&] { parse_digest(bad); }), ErrorCode::damaged);
}

}  // namespace
}  // namespace shardwright::ckpt
