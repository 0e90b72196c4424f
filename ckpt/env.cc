// What can be built from an Env's calls, whatever Env it is.
#include "ckpt/env.h"

#include <filesystem>

#include "ckpt/error.h"

namespace shardwright::ckpt {

std::string parent_path(const std::string& path) {
  const std::size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return "/";
  const std::size_t slash = path.find_last_of('/', last);
  if (slash == std::string::npos) return ".";
  const std::size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}
std::string read_file(Env& env, const std::string& path, std::uint64_t max_bytes) {
  const std::unique_ptr<ReadableFile> file = env.open(path);
  const std::uint64_t size = file->size();
  if (size > max_bytes)
    throw Error(ErrorCode::damaged,
                path + ": has " + std::to_string(size) + " bytes; at most " + std::to_string(max_bytes) +
                    " are right",
                path);
  std::string contents(size, '\0');
  file->read(0, std::as_writable_bytes(std::span(contents)));
  return contents;
}

void replace_file(Env& env, const std::string& path, const std::string& contents) {
  const std::string temporary = path + ".new";
  try {
    {
      const std::unique_ptr<WritableFile> file = env.create(temporary);
      file->write(0, std::as_bytes(std::span(contents)));
      file->sync();
    }
    env.rename(temporary, path);
  } catch (const Error&) {
    try {
      env.unlink(temporary);
    } catch (const Error&) {
      // What went wrong first is what counts.
    }
    throw;
  }
  env.sync_dir(parent_path(path));
}

void remove_checkpoint_dir(Env& env, const std::string& path) {
  // What a link leads to is not ours to remove.
  if (std::filesystem::is_symlink(path) || !env.is_dir(path)) return env.unlink(path);
  // COMMIT first: a reader that meets a missing file looks there to learn whether the checkpoint is being
  // removed.
  env.unlink(path + "/COMMIT");
  for (const std::string& entry : env.list(path)) {
    const std::string inner = path + "/" + entry;
    if (!std::filesystem::is_symlink(inner) && env.is_dir(inner)) {
      for (const std::string& file : env.list(inner)) env.unlink(inner + "/" + file);
      env.remove_dir(inner);
    } else {
      env.unlink(inner);
    }
  }
  env.remove_dir(path);
}

}  // namespace shardwright::ckpt
