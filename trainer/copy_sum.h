// Gradients of tensors that several ranks of a model's copy hold alike, where each of them has only a part of
// the gradient: KV heads shared by a group of ranks with different query heads, embeddings tied over two
// stages, and with sequence parallelism norms and biases, of which each rank has seen only its rows.
#pragma once

#include <vector>

#include "trainer/communicator.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

/// The copies that have partial gradients, by the group that holds them. Not thread-safe.
class CopySum {
 public:
  CopySum(Parameters& parameters, Communicators& comms, bool sequence_parallel);
  /// Sums grad_piece over each group, in place; the sum is the same in each bit on all its ranks. Collective
  /// over the model's copy.
  void run();
  /// Bytes that it allocates, as a pure function of what a rank holds.
  static std::size_t bytes(const ParameterMemory& memory);

 private:
  struct Group {
    Communicator* comm = nullptr;
    std::vector<Parameter*> copies;
  };
  std::vector<Group> groups_;
  kernels::Memory packed_;  // small ones go together
};

}  // namespace shardwright::trainer
