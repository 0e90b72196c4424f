#include "trainer/agreement.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>
#include <vector>

namespace shardwright::trainer {
namespace {

// "<code> <length of path> <path><message>"
std::string encode(const Error& error) {
  return fmt::format("{} {} {}{}", static_cast<int>(error.code()), error.path().size(), error.path(),
                     error.what());
}

Error decode(const std::string& text, std::size_t rank) {
  std::size_t used = 0;
  const int code = std::stoi(text, &used);
  std::size_t used_again = 0;
  const std::size_t length = std::stoul(text.substr(used), &used_again);
  const std::size_t path = used + used_again + 1;
  const std::string message = text.substr(path + length);
  // Where rank 0 failed, all did, and the number would only puzzle.
  return Error(static_cast<ErrorCode>(code), rank == 0 ? message : fmt::format("rank {}: {}", rank, message),
               text.substr(path, length));
}

}  // namespace

std::optional<Error> failure_of_any(Communicator& world, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (const Error& error) {
    mine = encode(error);
  } catch (const std::bad_alloc&) {
    mine = encode(Error(ErrorCode::io, kNoMemory));
  } catch (const std::exception& error) {
    mine = encode(Error(ErrorCode::io, error.what()));
  }
  const std::vector<std::string> all = world.all_gather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) return decode(all[rank], rank);
  return std::nullopt;
}

void together(Communicator& world, const std::function<void()>& work) {
  if (const std::optional<Error> error = failure_of_any(world, work)) throw AgreedError(*error);
}

}  // namespace shardwright::trainer
