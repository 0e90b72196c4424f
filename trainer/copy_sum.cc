#include "trainer/copy_sum.h"

#include <algorithm>

namespace shardwright::trainer {

CopySum::CopySum(Parameters& parameters, Communicators& comms, bool sequence_parallel) {
  Group tied{comms.tied.get(), {}};
  Group kv{comms.kv.get(), {}};
  Group tensor{sequence_parallel ? comms.tensor.get() : nullptr, {}};
  for (Parameter& p : parameters.all()) {
    if (p.placed.stage_copies > 1) {
      tied.copies.push_back(&p);
    } else if (p.placed.copies > 1) {
      (p.spec->replicated() ? tensor : kv).copies.push_back(&p);
    }
  }
  for (Group* group : {&tied, &kv, &tensor})
    if (group->comm != nullptr && !group->copies.empty()) groups_.push_back(*group);
}

void CopySum::run() {
  for (Group& group : groups_) {
    packed_.clear();
    for (const Parameter* p : group.copies)
      packed_.insert(packed_.end(), p->grad, p->grad + p->placed.holds.elements());
    group.comm->all_reduce_sum(std::span<float>(packed_));
    const float* next = packed_.data();
    for (Parameter* p : group.copies) {
      std::copy_n(next, p->placed.holds.elements(), p->grad);
      next += p->placed.holds.elements();
    }
  }
}

}  // namespace shardwright::trainer
