// How ranks leave together: what fails on one of them becomes everyone's error, before anyone waits at the
// next collective.
#pragma once

#include <functional>
#include <optional>

#include "ckpt/error.h"
#include "trainer/communicator.h"

namespace shardwright::trainer {

/// What is told where memory cannot be had.
inline constexpr const char* kNoMemory =
    "memory: this machine has not enough free; fewer ranks here, or a smaller model";

/// An Error that every rank of the run throws at the same place, so that all can leave in order.
class AgreedError : public Error {
 public:
  explicit AgreedError(const Error& error) : Error(error) {}
};

/// Runs `work` on each rank and exchanges what it threw. Returns the first rank's error, the same on all
/// ranks, or nothing. Anything thrown that is no Error becomes Error(io). Collective.
std::optional<Error> failure_of_any(Communicator& world, const std::function<void()>& work);

/// The same, thrown as AgreedError.
void together(Communicator& world, const std::function<void()>& work);

}  // namespace shardwright::trainer
